"""The command: whatever is typed, it does it, or says in a line why not; status 1 or 2, never a traceback."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ratchet import cli, command
from ratchet.errors import RatchetError, SettingsError, StackError
from ratchet.operate.reason import reason_given

EVERY = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
words = st.text(max_size=6) | st.sampled_from(
    ["flights", "1", "0", "-1", "1e3", "--reason", "--json", "--dry-run", "--since"]
)
commands = st.sampled_from(
    ["status", "history", "retry", "abort", "void", "accept-loss", "repartitioned", "verify", "nothing"]
)
bytes_typed = st.binary(max_size=12).map(lambda said: said.decode("utf-8", "surrogateescape"))


@EVERY
@given(commands, st.lists(words, max_size=5))
@example("void", ["flights", "99999999999999999999", "--reason", "x"])
@example("verify", ["flights", "--recompute"])
def test_any_arguments_are_wrong_usage_or_an_error_of_ours(monkeypatch, command, arguments):
    """No ledger is named, so none is asked."""
    monkeypatch.setenv("RATCHET_LEDGER_URL", "")
    monkeypatch.setenv("RATCHET_KAFKA", "")
    done = CliRunner().invoke(cli.app, [command, *arguments])
    if isinstance(done.exception, RatchetError):
        assert str(done.exception)
    else:
        assert done.exit_code == 2 or "--help" in arguments, (done.exit_code, done.exception)


@EVERY
@given(bytes_typed | st.text(max_size=10))
@example("\udcff")
@example("a\x00b")
def test_any_reason_can_be_kept_in_the_history_or_is_refused(said):
    try:
        reason = reason_given(said)
    except SettingsError as error:
        assert "the reason" in str(error)
        return
    assert reason == said.strip() != "" and "\x00" not in reason and reason.encode()
    assert any(sign.isalnum() for sign in reason)


@pytest.mark.parametrize("said", ["…", " … ", "-", "?!", "'…'"])
def test_a_reason_without_words_is_refused_and_asked_for(said):
    with pytest.raises(SettingsError, match="the reason .* has no words; say why"):
        reason_given(said)


@pytest.mark.parametrize("said", ["no. 7", "7", "理由", "é"])
def test_a_reason_in_any_language_is_one(said):
    assert reason_given(said) == said


@EVERY
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40))
@example('{"bootstrap.servers": 5}')
@example('{"bootstrap.servers": "a:1", "ssl.truststore.type": null}')
@example("[]")
@example("[" * 10_000)
def test_any_kafka_in_the_environment_is_texts_by_name_or_a_settings_error(monkeypatch, said):
    monkeypatch.setenv("RATCHET_KAFKA", said)
    try:
        found = command.kafka_properties()
    except SettingsError as error:
        assert "RATCHET_KAFKA" in str(error)
        return
    assert all(isinstance(part, str) for pair in found.items() for part in pair)


@pytest.mark.parametrize("error", [SettingsError("a [red] word"), StackError("x\n[/] y")])
def test_an_error_is_said_as_it_is_whatever_is_in_it(error, capsys):
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        cli.main(fail)
    assert ended.value.code == 1 and capsys.readouterr().err.strip() == f"error {error.code}: {error}"
