"""A copy of the checkout with an installation of its own, into which mistakes are planted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.dev.stack import CHECKOUT
from tests.proof.planted.plant import Plant

IMPORTS = "import ratchet.cli, ratchet.operate.upkeep, ratchet.operate.verify, ratchet.spark.slice"


class DoesNotFit(Exception):
    """A plant that cannot be planted: the code has changed since it was written."""


class Copy:
    """All files that git knows, below `home`; what is installed is shared but for the project itself."""

    def __init__(self, home: Path):
        self.home = home
        shutil.rmtree(home, ignore_errors=True)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            into = home / name
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, into)
        (home / ".jars").symlink_to(CHECKOUT / ".jars")
        self.python = self._install()

    def _install(self) -> Path:
        """A Python that finds the copy first, and everything else where the checkout has it."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.home / ".venv"], check=True)
        site = next((self.home / ".venv").glob("lib/python3*/site-packages"))
        found = [self.home / "include", self.home, Path(sysconfig.get_path("purelib"))]
        (site / "copy.pth").write_text("".join(f"{path}\n" for path in found))
        return self.home / ".venv" / "bin" / "python"

    def run(self, *said: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """What the copy's Python says to this, started in the copy; status None if it had not ended in time."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        # A file that is changed back within a second, and is as long as before, would be taken for what was compiled.
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        with subprocess.Popen(
            [self.python, *said],
            cwd=self.home,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=seconds)
                return subprocess.CompletedProcess(process.args, process.returncode, out, err)
            except subprocess.TimeoutExpired:
                out, err = _interrupted(process)
                return subprocess.CompletedProcess(process.args, None, out, err)
            except BaseException:
                # Ctrl-C reaches this process alone.
                _interrupted(process)
                raise

    @contextmanager
    def with_planted(self, plant: Plant) -> Iterator[None]:
        """The copy with one mistake in it; DoesNotFit where that is not there, or does not import."""
        files = {self._file(change.file) for change in plant.changes}
        before = {file: file.read_text() for file in files}
        try:
            for change in plant.changes:
                text = self._file(change.file).read_text()
                if text.count(change.old) != 1:
                    raise DoesNotFit(f"{plant.name}: {change.file} has {text.count(change.old)} times {change.old!r}")
                self._file(change.file).write_text(text.replace(change.old, change.new))
            imported = self.run("-c", IMPORTS, seconds=60)
            if imported.returncode != 0:
                raise DoesNotFit(f"{plant.name}: it does not import: {imported.stderr.strip().splitlines()[-1]}")
            yield
        finally:
            for file, text in before.items():
                file.write_text(text)

    def _file(self, name: str) -> Path:
        return self.home / "include" / "ratchet" / name


def _interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a process as Ctrl-C does, so that it ends its servers, or else by force; what it has said."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()
