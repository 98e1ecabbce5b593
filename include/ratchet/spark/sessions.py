"""Kept sessions of a Connect server: each is lent to one job at a time, and kept only by a job that ended well.

A session has a state of its own, such as the temporary views that a transform makes, and Spark looks a view up by its
name whenever it reads a frame: two jobs in one session would read each other's records. So a session that nobody uses
is a file in this machine's directory for temporary files, and whoever removes the file has the session. A job that
was killed or failed has removed it for good: what it had sent might still arrive.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_URL, uuid4, uuid5

KEEP_SECONDS = 3600
"""Spark lets a session expire that nobody has used for so long."""


@dataclass(frozen=True)
class Kept:
    """The sessions of one server, pipeline and code version that this machine's user has opened."""

    url: str
    pipeline: str
    code_hash: str

    @contextmanager
    def lent(self) -> Iterator[Iterator[str]]:
        """The ids of free sessions, the one that was used last first, and then a new one; for this block alone.

        Who takes the next id has found the one before unusable. The last one taken is kept if the block ends well.
        """
        taken: list[str] = []
        yield self._take(taken)
        if taken:
            with suppress(OSError):
                self._keep(taken[-1])

    @contextmanager
    def shared(self) -> Iterator[Iterator[str]]:
        """The id of the session that jobs without a state of their own share, and then new ones, which they share then.

        Whoever takes the next id has found the one before unusable.
        """
        yield self._common()

    def _common(self) -> Iterator[str]:
        """Of several that replace a session at once the last one's stays; the others' expire."""
        with suppress(OSError):
            yield self._shared_file().read_text()
        while True:
            made = str(uuid4())
            with suppress(OSError):
                fresh = self._shared_file().with_suffix(f".{made}")
                fresh.write_text(made)
                fresh.rename(self._shared_file())
            yield made

    def _shared_file(self) -> Path:
        return _directory() / f"shared-{self._name}"

    def _take(self, taken: list[str]) -> Iterator[str]:
        for file in self._free():
            with suppress(OSError):
                # Of several that see the file one can remove it.
                file.unlink()
                taken.append(file.suffix[1:])
                yield taken[-1]
        taken.append(str(uuid4()))
        yield taken[-1]

    def _free(self) -> list[Path]:
        try:
            here = _directory()
            files = [(file.stat().st_mtime, file) for file in here.iterdir()]
        except OSError:
            # Without a place to keep them each job opens a session of its own.
            return []
        oldest = time.time() - KEEP_SECONDS
        for used, file in files:
            if used < oldest:
                file.unlink(missing_ok=True)
        mine = [(used, file) for used, file in files if used >= oldest and file.stem == self._name]
        return [file for _, file in sorted(mine, reverse=True)]

    def _keep(self, session: str) -> None:
        (_directory() / f"{self._name}.{session}").touch(exist_ok=False)

    @property
    def _name(self) -> str:
        return str(uuid5(NAMESPACE_URL, f"{self.url} {self.pipeline} {self.code_hash}"))


def _directory() -> Path:
    """This user's directory; OSError where it cannot be made or is another user's."""
    here = Path(tempfile.gettempdir(), f"ratchet-sessions-{os.getuid()}")
    here.mkdir(mode=0o700, exist_ok=True)
    if here.is_symlink() or here.stat().st_uid != os.getuid():
        raise PermissionError(f"{here} is another user's")
    return here
