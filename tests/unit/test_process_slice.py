"""Where a submitted driver finds its secrets; that it works at all is shown by the acceptance tests."""

import json
import subprocess
import sys

import psutil
import pytest

from jobs import process_slice
from ratchet.errors import SettingsError


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    file = tmp_path / "secrets.json"
    file.write_text(json.dumps({"ledger_url": "postgresql://", "kafka": {"bootstrap.servers": "at:1"}}))
    monkeypatch.setenv("RATCHET_SECRETS_FILE", str(file))
    return file


def test_a_file_that_only_its_owner_can_read_is_read(secrets):
    secrets.chmod(0o600)
    assert process_slice.secrets() == ("postgresql://", {"bootstrap.servers": "at:1"})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_is_refused(secrets, mode):
    secrets.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        process_slice.secrets()


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
