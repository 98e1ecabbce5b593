"""What the machine must have before a server can start; each check says in one line what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from ratchet.errors import StackError

JAVAS = (17, 21)
NEEDED_GIB = 2


def java() -> Path:
    """The Java of JAVA_HOME, else of PATH, as it names itself; StackError unless it is 17 or 21."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else shutil.which("java")
    wanted = (
        "install a Java 17 or 21 runtime (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one"
    )
    if not found or not Path(found).exists():
        raise StackError(f"Kafka and Spark need Java, and {'JAVA_HOME has' if home else 'PATH has'} none; {wanted}")
    try:
        done = subprocess.run([found, "-XshowSettings:properties", "-version"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{found} cannot be run: {error}; {wanted}") from error
    said = done.stderr.decode(errors="replace")
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if not version or int(version[1]) not in JAVAS:
        is_ = f"Java {version[1]}" if version else "no Java that tells its version"
        raise StackError(f"{found} is {is_}; Kafka and Spark need Java 17 or 21; {wanted}")
    # PATH may hold a version manager's script: its directory is not where Java is.
    named = re.search(r"^ *java\.home = (.+)$", said, re.MULTILINE)
    real = Path(named[1].strip()) / "bin" / "java" if named else Path(found).resolve()
    return real if real.exists() else Path(found).resolve()


def disk(home: Path) -> None:
    """StackError when the disk that holds `home` has too little room."""
    free = shutil.disk_usage(home).free / 2**30
    if free < NEEDED_GIB:
        raise StackError(
            f"the disk of {home} has {free:.1f} GiB left; the servers need {NEEDED_GIB}; make room and try again"
        )


def jars(checkout: Path, conf: str) -> list[Path]:
    """The jars of one configuration of ivy.xml; StackError when they were never fetched."""
    found = sorted((checkout / ".jars" / conf).glob("*.jar"))
    if not found:
        raise StackError(f"there are no Java libraries in .jars/{conf}; fetch them with `make install`")
    return found
