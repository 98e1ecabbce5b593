"""What a submitted driver is handed: a token and secrets, or a SettingsError that says what is wrong with them."""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs import process_slice
from ratchet.errors import SettingsError

EVERY = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
sentences = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
documents = (
    sentences
    | values.map(json.dumps)
    | st.fixed_dictionaries({}, optional={"ledger_url": values, "kafka": values, "x": values}).map(json.dumps)
)


@settings(max_examples=200)
@given(
    st.lists(st.text(max_size=6) | st.integers(-9, 99).map(str), max_size=8)
    | st.lists(st.integers(-1, 9).map(str), min_size=6, max_size=6)
)
@example(["p", "1", "0", "1", "0", "x"])
@example(["p", "1", "0", "1", "0", "-1"])
@example(["p", "1", "0", "1", "0", "\u0661"])
@example(["p", "1", "0", "1", "0", "1" * 5000])
def test_any_arguments_are_a_token_or_a_settings_error(arguments):
    try:
        token = process_slice.token_of(arguments)
    except SettingsError as error:
        assert "PIPELINE TXID REVISION EPOCH SLICE TRY" in str(error)
    else:
        assert [token.pipeline, *map(str, token.numbers)] == arguments and min(token.numbers) >= 0


@EVERY
@given(documents.map(str.encode) | st.binary(max_size=20))
@example(b"{}")
@example(b'{"ledger_url": "postgresql://h/d"}')
@example(b'{"ledger_url": "postgresql://u:hunter2@h/d", "kafka": {}')
@example(b'{"ledger_url": "postgresql://u:hunter2@h/d", "kafka": ["hunter2"]}')
@example(b'{"ledger_url": 5, "kafka": {}}')
@example(b'{"ledger_url": "postgresql://h/d", "kafka": {"bootstrap.servers": 5}}')
def test_any_file_of_secrets_is_read_or_a_settings_error_that_shows_none_of_it(tmp_path, monkeypatch, content):
    file = tmp_path / "secrets.json"
    file.write_bytes(content)
    file.chmod(0o600)
    monkeypatch.setenv("RATCHET_SECRETS_FILE", str(file))
    check_secrets("RATCHET_SECRETS_FILE")


@EVERY
@given(documents)
@example('{"bootstrap.servers": null}')
def test_any_kafka_in_the_environment_is_read_or_a_settings_error(monkeypatch, content):
    monkeypatch.delenv("RATCHET_SECRETS_FILE", raising=False)
    monkeypatch.setenv("RATCHET_LEDGER_URL", "postgresql://h/d")
    monkeypatch.setenv("RATCHET_KAFKA", content)
    check_secrets("RATCHET_KAFKA")


def test_a_file_of_secrets_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RATCHET_SECRETS_FILE", str(tmp_path / "absent"))
    with pytest.raises(SettingsError, match="RATCHET_SECRETS_FILE"):
        process_slice.secrets()


def check_secrets(named: str) -> None:
    try:
        url, servers = process_slice.secrets()
    except SettingsError as error:
        assert named in str(error) and "hunter2" not in str(error)
        return
    assert isinstance(url, str) and all(isinstance(part, str) for pair in servers.kafka.items() for part in pair)
