"""Where a submitted driver finds its secrets; that it works at all is shown by the acceptance tests."""

import json
import subprocess
import sys

import psutil
import pytest

from jobs import process_slice
from ratchet.errors import SettingsError
from ratchet.spark.servers import Servers
from ratchet.values.endpoint import CONNECTIONS, Endpoint


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    file = tmp_path / "secrets.json"
    registry = {"url": "https://at:8081", "login": "me", "password": "hunter2"}
    said = {
        "ledger_url": "postgresql://",
        "kafka": {"bootstrap.servers": "at:1"},
        "connections": {"registry": registry},
    }
    file.write_text(json.dumps(said))
    monkeypatch.setenv("RATCHET_SECRETS_FILE", str(file))
    return file


def test_a_file_that_only_its_owner_can_read_is_read(secrets):
    secrets.chmod(0o600)
    registry = Endpoint("https://at:8081", "me", "hunter2", {})
    assert process_slice.secrets() == ("postgresql://", Servers({"bootstrap.servers": "at:1"}, {"registry": registry}))
    assert "hunter2" not in repr(process_slice.secrets())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_is_refused(secrets, mode):
    secrets.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        process_slice.secrets()


@pytest.mark.parametrize(
    "said",
    [
        "hunter2",
        '"hunter2"',
        '{"a": "hunter2"}',
        '{"a": {}}',
        '{"a": {"url": "hunter2", "more": 1}}',
        '{"a": {"url": 5}}',
    ],
)
def test_a_connection_that_is_no_endpoint_is_named_without_its_values(monkeypatch, said):
    monkeypatch.delenv("RATCHET_SECRETS_FILE", raising=False)
    monkeypatch.setenv("RATCHET_LEDGER_URL", "postgresql://h/d")
    monkeypatch.setenv("RATCHET_KAFKA", "{}")
    monkeypatch.setenv(CONNECTIONS, said)
    with pytest.raises(SettingsError, match=CONNECTIONS) as caught:
        process_slice.secrets()
    assert "hunter2" not in str(caught.value)


def test_without_secrets_it_says_what_to_set(monkeypatch):
    for name in ("RATCHET_SECRETS_FILE", "RATCHET_LEDGER_URL", "RATCHET_KAFKA"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError, match="RATCHET_LEDGER_URL"):
        process_slice.secrets()


def test_a_driver_ends_when_the_process_that_started_it_is_killed():
    """The one in the middle stands for the JVM."""
    driver = "from jobs.process_slice import *; end_with_parent(0.01); print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {driver!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as middle:
        assert middle.stdout is not None
        child = psutil.Process(int(middle.stdout.readline()))
        middle.kill()
    child.wait(30)
