"""The log of a directory of files: a record for each version, of which of all who try only one makes the next."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from secrets import token_hex

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.destinations.files import LEVELS
from ratchet.destinations.port import Mark

SEEN, HIDDEN = "data", "_ratchet"
"""What readers see, and what they do not."""
_NO_LINKS = errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS
_A_SHARD = 1_000
"""So many records stand in one directory, so that the newest is found without a look at all."""


class File(BaseModel):
    """A file that a version has brought: where, below the version's directory, its rows and its size in bytes."""

    model_config = ConfigDict(frozen=True)
    path: str
    rows: int
    bytes: int


class Layout(BaseModel):
    """What all files of a directory have in common, so that one reader reads them."""

    model_config = ConfigDict(frozen=True)
    format: str
    partition_by: tuple[str, ...]
    columns: dict[str, str]
    """Each column, and its type as specs have it."""

    def with_those_of(self, before: Layout) -> Layout:
        """The same with the columns of files from before."""
        return self.model_copy(update={"columns": before.columns | self.columns})


class Version(BaseModel):
    """What one version changes: directories that it brings into sight, and others that it takes out of it."""

    model_config = ConfigDict(frozen=True)
    number: int
    pipeline: str
    sink: str
    step: int
    token: int
    txid: int | None = None
    """The transaction whose rows it has; None for the first version, and for one that has all."""
    layout: Layout | None = None
    """None as long as nothing was written."""
    brings: str | None = None
    """Where its files wait, in `incoming`; None where it has none."""
    takes: tuple[str, ...] = ()
    """Directories, below the one that readers see."""
    files: tuple[File, ...] = ()

    @property
    def mark(self) -> Mark:
        return Mark(self.step, self.token)

    @property
    def directory(self) -> str:
        """Where its files are seen."""
        return f"{LEVELS[0]}={self.number}"


class Unreadable(Exception):
    """A record is there that is none."""


class Unlinked(Exception):
    """The file system gives no file a second name."""


class FileLog:
    """The records, each a file of its own, which is made whole or not at all and never changed."""

    def __init__(self, root: Path):
        self._records = root / HIDDEN / "log"
        self.incoming = root / HIDDEN / "incoming"

    def newest(self) -> Version | None:
        """The last record; None where there is none. Raises Unreadable, and OSError."""
        for shard in sorted(_numbered(self._records), reverse=True):
            numbers = _numbered(self._records / _name(shard))
            if numbers:
                return self.read(max(numbers))
        return None

    def add(self, version: Version) -> bool:
        """Make the record of a version; False where there is one of its number. Raises OSError.

        The record is written elsewhere and then given its name, by a link, which no file system makes twice.
        """
        self.incoming.mkdir(parents=True, exist_ok=True)
        place = self._place(version.number)
        place.parent.mkdir(parents=True, exist_ok=True)
        written = self.incoming / f"{version.number}-{token_hex(8)}"
        with written.open("xb") as file:
            file.write(version.model_dump_json(indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(written, place)
        except FileExistsError:
            # A network file system asks again where an answer was lost, and then finds its own link.
            if written.stat().st_nlink == 1:
                return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise Unlinked(error.strerror) from error
            raise
        finally:
            written.unlink(missing_ok=True)
        for directory in (place.parent, self._records):
            sync(directory)
        return True

    def read(self, number: int) -> Version:
        """The record of a version. Raises Unreadable, and OSError."""
        place = self._place(number)
        try:
            version = Version.model_validate_json(place.read_bytes())
        except ValidationError as error:
            raise Unreadable(f"{place} is no record of a version") from error
        if version.number != number:
            raise Unreadable(f"{place} is the record of version {version.number}")
        return version

    def _place(self, number: int) -> Path:
        return self._records / _name(number // _A_SHARD) / _name(number)


def sync(directory: Path) -> None:
    """See that the names in a directory outlive a crash of the machine."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _name(number: int) -> str:
    return f"{number:010d}"


def _numbered(directory: Path) -> list[int]:
    """The numbers among the names in a directory; none where it is not there."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [int(name) for name in names if name.isdigit()]
