"""Tasks are forks of a process that has loaded this project, and still run what is on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ratchet.dev.stack import CHECKOUT

FORKS = """
import json, os, runpy, sys
from pathlib import Path

sys.argv = ["airflow", "scheduler"]
plugin, package = sys.orig_argv[-2:]

def task():
    "What a task that is forked now has loaded already, and what the module says to it."
    read, write = os.pipe()
    if os.fork() == 0:
        loaded = "ratchet.protocol.begin" in sys.modules
        import ratchet.errors
        os.write(write, json.dumps([loaded, getattr(ratchet.errors, "MARK", None)]).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(read, 100))

module = Path(package) / "ratchet" / "errors.py"
broken = Path(package) / "ratchet" / "protocol" / "commit.py"
before = module.read_text()
"""
CHANGES = """
runpy.run_path(plugin)
said = [task()]
module.write_text(before + "\\nMARK = 1\\n")
said.append(task())
module.write_text(before)
said.append(task())
print(json.dumps(said))
"""
IS_MENDED = """
sound = broken.read_text()
broken.write_text("nobody has read this")
module.write_text(before + "\\nMARK = 1\\n")
try:
    runpy.run_path(plugin)
except SyntaxError:
    said = [task()]
broken.write_text(sound)
module.write_text(before)
said.append(task())
print(json.dumps(said))
"""


def test_a_task_has_this_project_loaded_unless_its_files_have_changed(tmp_path: Path):
    assert said(tmp_path, CHANGES) == [[True, None], [False, 1], [True, None]]


def test_what_a_broken_version_has_left_is_forgotten_when_it_is_mended(tmp_path: Path):
    assert said(tmp_path, IS_MENDED) == [[True, 1], [False, None]]


def said(home: Path, what: str) -> list:
    """What tasks say that are forked from a process which has loaded a copy of this project."""
    shutil.copytree(CHECKOUT / "include" / "ratchet", home / "ratchet", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", FORKS + what, str(CHECKOUT / "plugins" / "preload.py"), str(home)]
    env = {**os.environ, "PYTHONPATH": str(home), "AIRFLOW_HOME": str(home / "airflow")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
