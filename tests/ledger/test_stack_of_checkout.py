"""The command in a checkout whose embedded servers run: it finds them where the environment names none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ratchet import cli, command
from ratchet.dev.stack import Stack, addresses
from ratchet.errors import LedgerUnreachable, SettingsError

LINE = "using the stack of this checkout\n"
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture
def run(monkeypatch, postgres):
    """Runs the command as if the test's own servers were those of the checkout."""
    monkeypatch.setattr(addresses, "DEMO", postgres.home)
    monkeypatch.setenv("RATCHET_PIPELINES", "tests.ledger.pipelines")
    for name in ("RATCHET_LEDGER_URL", "RATCHET_KAFKA", "RATCHET_SPARK"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str):
        command.variables.cache_clear()
        return CliRunner().invoke(cli.app, arguments)

    yield run
    command.variables.cache_clear()


def test_the_stack_that_runs_is_found_said_once_and_used(run, postgres):
    done = run("migrate", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith(LINE) and done.stderr.count(LINE) == 1
    assert json.loads(done.stdout)["dry_run"]
    assert command.ledger_url() == postgres.ledger_url


@pytest.mark.parametrize("name", ["RATCHET_LEDGER_URL", "RATCHET_KAFKA", "RATCHET_SPARK"])
@pytest.mark.parametrize("value", ["", NOWHERE])
def test_a_server_that_is_named_is_not_mixed_with_the_stacks(run, monkeypatch, name, value):
    """A ledger held against the topic of another Kafka would find it made again."""
    monkeypatch.setenv(name, value)
    done = run("status", "line")
    reached = name == "RATCHET_LEDGER_URL" and value
    assert isinstance(done.exception, LedgerUnreachable if reached else SettingsError), done.exception
    assert LINE not in done.stderr


def test_a_stack_that_is_dead_or_starting_is_not_used(run, monkeypatch, postgres, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    shutil.copy(postgres.home / "addresses.json", tmp_path)
    monkeypatch.setattr(addresses, "DEMO", tmp_path)
    for left in (None, json.dumps([ended.pid, 0]), json.dumps([os.getpid(), 0]), "", "[1]"):
        if left is not None:
            (tmp_path / "supervisor.pid").write_text(left)
        assert isinstance(run("status", "line").exception, SettingsError), left
    shutil.copy(postgres.home / "supervisor.pid", tmp_path)
    assert not isinstance(run("status", "line").exception, SettingsError)
    (tmp_path / "addresses.json").unlink()
    assert isinstance(run("status", "line").exception, SettingsError)


def test_the_addresses_are_this_users_alone_and_go_with_the_servers(run, monkeypatch, scratch):
    home = scratch / "found"
    monkeypatch.setattr(addresses, "DEMO", home)
    with Stack(home, {"postgres"}) as stack:
        assert (home / "addresses.json").stat().st_mode & 0o077 == 0
        said = run("stack", "env").stdout
        shell = subprocess.run(["sh", "-c", f'{said}\necho "$RATCHET_LEDGER_URL"'], capture_output=True, text=True)
        assert shell.stdout == f"{stack.ledger_url}\n"
    assert not (home / "addresses.json").exists()
    assert "do not run" in str(run("stack", "env").exception)
