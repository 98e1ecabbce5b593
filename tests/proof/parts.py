"""Long runs in parts: what was found is written down as it comes, so that a part goes on where it stopped.

Results belong to one commit and one seed; a report joins the parts of these and of no other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from rich.console import Console

from ratchet.dev.stack import CHECKOUT


@dataclass(frozen=True)
class Part:
    """The n-th of so many parts, of the run with this seed; as SEED=7 PART=2/3 say."""

    number: int
    of: int
    seed: int

    @classmethod
    def asked(cls) -> Part:
        """What the environment asks for: all of it with seed 1, where it says nothing."""
        said, seed = os.environ.get("PART") or "1/1", os.environ.get("SEED") or "1"
        number, _, of = said.partition("/")
        if not (number.isdigit() and of.isdigit() and seed.isdigit() and 1 <= int(number) <= int(of)):
            sys.exit(f"PART={said} SEED={seed}: write PART=1/3, 2/3 or 3/3, and a whole number as SEED")
        return cls(int(number), int(of), int(seed))

    def mine(self, items: list[Any]) -> list[Any]:
        """Those of the items that fall to this part."""
        return items[self.number - 1 :: self.of]

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class Results:
    """The file `.state/NAME/COMMIT-SEED.jsonl`: a line of JSON for each thing that was found out."""

    def __init__(self, name: str, part: Part):
        self.commit, self.part = commit(), part
        self.directory = CHECKOUT / ".state" / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.file = self.directory / f"{self.commit}-{part.seed}.jsonl"

    def add(self, **found: Any) -> dict[str, Any]:
        """Write down one finding; parts may do so at the same time. Returns it as it is read again."""
        said = {"commit": self.commit, "seed": self.part.seed, "part": str(self.part), **found}
        with self.file.open("a") as file:
            file.write(json.dumps(said) + "\n")
        return said

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every finding of every part."""
        if self.file.exists():
            yield from map(json.loads, self.file.read_text().splitlines())


def wide_console() -> Console:
    """Where a long run says how far it is, and shows its report; wide enough for one where there is no terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def commit() -> str:
    """The checkout's commit, in twelve digits; where files of it have been changed since, a plus and what they are now.

    What was found out in one state of the files is nothing that a run in another one could go on from. Exits where
    there is no git.
    """

    def git(*said: str) -> bytes:
        done = subprocess.run(["git", *said], cwd=CHECKOUT, capture_output=True)
        if done.returncode:
            sys.exit(f"results are kept by commit, and git cannot say which this is: {done.stderr.decode().strip()}")
        return done.stdout

    head = git("rev-parse", "--short=12", "HEAD").decode().strip()
    changed = git("diff", "HEAD", "--binary")
    for file in git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")[:-1]:
        changed += file + b"\0" + (CHECKOUT / os.fsdecode(file)).read_bytes()
    return f"{head}+{sha256(changed).hexdigest()[:8]}" if changed else head
