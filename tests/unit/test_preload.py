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
runpy.run_path(plugin)

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
before = module.read_text()
said = [task()]
module.write_text(before + "\\nMARK = 1\\n")
said.append(task())
module.write_text(before)
said.append(task())
print(json.dumps(said))
"""


def test_a_task_has_this_project_loaded_unless_its_files_have_changed(tmp_path: Path):
    shutil.copytree(
        CHECKOUT / "include" / "ratchet", tmp_path / "ratchet", ignore=shutil.ignore_patterns("__pycache__")
    )
    command = [sys.executable, "-c", FORKS, str(CHECKOUT / "plugins" / "preload.py"), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "AIRFLOW_HOME": str(tmp_path / "airflow")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[True, None], [False, 1], [True, None]]
