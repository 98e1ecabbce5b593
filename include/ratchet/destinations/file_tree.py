"""A directory of files as a destination: each change is a version, which its log decides and its names then show.

1. The rows are written where no reader looks, and are on the disk.
2. The record of the next version is made, by a link, which one of several gets: that is the comparison, and the commit.
   It says which directories come into sight, and which go out of it.
3. These go, and that one comes, each by one renaming. Whoever finds a version of which something is left to do does it:
   no directory is ever called like another one that was there before, so that who is late finds nothing to do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePath
from secrets import token_hex
from typing import TYPE_CHECKING

from ratchet.destinations import file_rows
from ratchet.destinations.content import Change, Content, Puts
from ratchet.destinations.file_log import HIDDEN, SEEN, File, FileLog, Layout, Unlinked, Unreadable, Version, sync
from ratchet.destinations.file_writers import Writers
from ratchet.destinations.files import LEVELS
from ratchet.destinations.port import Mark, Outside, Owner, Undecided, no_answer
from ratchet.errors import DestinationRefused, RatchetError

if TYPE_CHECKING:
    from ratchet.destinations.files import Files

_OTHERWISE = "`ratchet detach` it and name another directory, or `ratchet attach --anew`, which writes all files again"


class Tree(Outside):
    """The directory, and the log in it."""

    GONE = (
        "there is no such directory here, or it has no log any more (a disk that is not mounted on this machine looks "
        "like that, and who makes the directory anew would write into its place)"
    )

    def __init__(self, declared: Files, owner: Owner):
        self._declared, self._owner = declared, owner
        self._root = Path(declared.name)
        self._log = FileLog(self._root)
        self._seen, self._removed = self._root / SEEN, self._root / HIDDEN / "removed"

    def mark(self) -> Mark | None:
        with self._told():
            newest = self._newest()
            if newest is None:
                return None
            self._show(newest)
            return newest.mark

    def look(self) -> Mark | None:
        with self._told():
            newest = self._newest()
            if newest is None:
                return None
            if any(place.exists() for place in self._unshown(newest)):
                raise Undecided
            return newest.mark

    def start(self, mark: Mark) -> None:
        with self._told():
            if self._newest() is None:
                self._check_free(_names(self._root))
                self._log.add(self._version(0, mark))

    def apply(self, at: Mark, to: Mark, change: Change | Puts) -> bool:
        assert isinstance(change, Change), "a spec has no files for rows of keys"
        with self._told():
            newest = self._newest()
            if newest is None or newest.mark != at:
                return False
            self._show(newest)
            self._fit(newest.layout, change)
            taken = self._directories_of(change.txid) if change.replaces else ()
            return self._add(newest, to, change, taken, change.txid)

    def counted(self) -> Iterator[tuple[int, int]]:
        """By its records: a file that is not there, or has another size, has no row."""
        with self._told():
            for directory in self._versions():
                version = self._log.read(int(directory.partition("=")[2]))
                for file in version.files:
                    txid = int(PurePath(file.path).parts[0].partition("=")[2])
                    yield txid, file.rows if _has(self._seen / directory / file.path, file.bytes) else 0

    def restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        with self._told():
            newest = self._newest()
            if (newest and newest.mark) != at:
                return False
            if newest is None:
                self._check_free({*_names(self._root), *_names(self._seen)} - {SEEN, *self._versions()})
            else:
                self._show(newest)
            if content is None:
                return self._log.add(self._version(self._after(newest), to, layout=newest and newest.layout))
            return self._add(newest, to, content, tuple(self._versions()), None)

    def _check_free(self, names: Iterable[str]) -> None:
        """DestinationRefused where readers see something among these."""
        there = [name for name in names if not name.startswith(("_", "."))]
        if there:
            raise DestinationRefused(
                f"{self._where} has {there[0]} already, and is no directory of this pipeline; name another one, or "
                "move away what is in it"
            )

    def _newest(self) -> Version | None:
        """The last version; DestinationRefused where the directory is another pipeline's."""
        try:
            newest = self._log.newest()
        except Unreadable as error:
            raise DestinationRefused(
                f"{self._where}: {error}; put it back from a copy, or move the directory away and `ratchet attach "
                "--anew`"
            ) from error
        if newest is not None and (newest.pipeline, newest.sink) != (self._owner.pipeline, self._owner.sink):
            raise DestinationRefused(
                f"{self._where} is a destination of {newest.pipeline}: {newest.sink} already; name another directory, "
                "or move this one away where that is over"
            )
        return newest

    def _version(self, number: int, to: Mark, **more: object) -> Version:
        whose = {"pipeline": self._owner.pipeline, "sink": self._owner.sink, "step": to.step, "token": to.token}
        return Version.model_validate({"number": number, **whose, **more})

    def _after(self, newest: Version | None) -> int:
        """The number of the next version, which no directory has, even if the log of those that are there is gone."""
        if newest is not None:
            return newest.number + 1
        return max((int(name.partition("=")[2]) for name in self._versions()), default=-1) + 1

    def _add(
        self, newest: Version | None, to: Mark, content: Content, takes: tuple[str, ...], txid: int | None
    ) -> bool:
        """Write the rows, and make the version that has them; False, with nothing changed, where another was first."""
        number, layout = self._after(newest), self._layout(content)
        if txid is not None and newest is not None and newest.layout is not None:
            layout = layout.with_those_of(newest.layout)
        name = f"{number}-{token_hex(8)}"
        try:
            files = self._write(self._log.incoming / name, content)
            brings = name if files else None
            more = {"txid": txid, "layout": layout, "brings": brings, "takes": takes, "files": files}
            version = self._version(number, to, **more)
            # What it has written stays if this fails: nobody knows then whether there is a record that says so.
            made = self._log.add(version)
        except OSError:
            if self._log.newest() == newest:
                raise
            # Who was first has removed what was being written.
            return False
        if made:
            self._show(version)
            self._tidy(version)
        else:
            _remove(self._log.incoming / name)
        return made

    def _write(self, directory: Path, content: Content) -> tuple[File, ...]:
        """Write the rows below a directory, which is made, and removed if that fails."""
        form, by = self._declared.format, self._declared.partition_by
        header = file_rows.header_of(content.fields, by) if form == "csv" else b""
        writers = Writers(directory, form, header)
        try:
            with closing(file_rows.rows_of(content, form, by, self._where)) as rows:
                for place, batch in rows:
                    writers.write(place, batch)
            files = writers.finish()
            if files:
                sync(directory.parent)
            return files
        except BaseException:
            writers.abandon()
            _remove(directory)
            raise

    def _layout(self, content: Content) -> Layout:
        columns = {column.name: str(column.type) for column in content.fields}
        return Layout(format=self._declared.format, partition_by=self._declared.partition_by, columns=columns)

    def _fit(self, before: Layout | None, content: Content) -> None:
        """See that who reads the files that are there reads these too."""
        now = self._layout(content)
        if before is None:
            return
        if before.format != now.format:
            raise DestinationRefused(f"{self._where} has files in {before.format}, not in {now.format}; {_OTHERWISE}")
        if before.partition_by != now.partition_by:
            said = [", ".join(layout.partition_by) or "nothing" for layout in (before, now)]
            raise DestinationRefused(f"{self._where} is divided by {said[0]}, not by {said[1]}; {_OTHERWISE}")
        renamed, spelt = dict(self._owner.renamed), {name.casefold(): name for name in before.columns}
        for name, kind in now.columns.items():
            found = spelt.get(name.casefold())
            if found is None and renamed.get(name) in before.columns:
                raise DestinationRefused(f"{self._where} has no column {name}, which was {renamed[name]}; {_OTHERWISE}")
            if found is not None and found != name:
                raise DestinationRefused(
                    f"{self._where} has a column {found}, and {name} differs from it only in case; {_OTHERWISE}"
                )
            if found is not None and before.columns[name] != kind:
                raise DestinationRefused(
                    f"{self._where}: column {name} is {before.columns[name]}, and is written as {kind}; {_OTHERWISE}"
                )

    def _versions(self) -> list[str]:
        level = f"{LEVELS[0]}="
        return [name for name in _names(self._seen) if name.startswith(level) and name.removeprefix(level).isdigit()]

    def _directories_of(self, txid: int) -> tuple[str, ...]:
        places = (f"{version}/{LEVELS[1]}={txid}" for version in self._versions())
        return tuple(place for place in places if (self._seen / place).is_dir())

    def _unshown(self, version: Version) -> Iterator[Path]:
        """What has yet to go, and what has yet to come; each is there until that is done."""
        yield from (self._seen / place for place in version.takes)
        if version.brings is not None:
            yield self._log.incoming / version.brings

    def _show(self, version: Version) -> None:
        """Do what a version says, as far as that is not done; readers see no row twice on the way."""
        removed = self._removed / str(version.number)
        for number, place in enumerate(self._unshown(version)):
            if place.exists():
                comes = place.parent == self._log.incoming
                to = self._seen / version.directory if comes else removed / str(number)
                to.parent.mkdir(parents=True, exist_ok=True)
                _rename(place, to)
                sync(self._seen)

    def _tidy(self, newest: Version) -> None:
        """Remove what no reader sees, of this version and of earlier ones: who still writes for these is too late."""
        for directory in (self._removed, self._log.incoming):
            with suppress(OSError):
                for name in os.listdir(directory):
                    number = name.partition("-")[0]
                    # A network file system leaves names of its own there.
                    if number.isdigit() and int(number) <= newest.number:
                        _remove(directory / name)
        for version in {place.partition("/")[0] for place in newest.takes}:
            # One of which all transactions were revised.
            with suppress(OSError):
                (self._seen / version).rmdir()

    @property
    def _where(self) -> str:
        return f"{self._owner}: {self._declared.address}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (RatchetError, Undecided):
            raise
        except Unlinked as error:
            raise DestinationRefused(
                f"{self._where}: the file system makes no hard links ({error}), by which one of two writers is told; "
                "name a directory on another one"
            ) from error
        except OSError as error:
            raise no_answer(self._where, str(error.strerror or error)) from error


def _has(path: Path, size: int) -> bool:
    """Whether a file is there, of this size in bytes."""
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _names(directory: Path) -> list[str]:
    """What is in a directory; nothing where it is not there."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _rename(place: Path, to: Path) -> None:
    try:
        place.rename(to)
    except FileNotFoundError:
        # Somebody else has done so.
        if place.exists():
            raise


def _remove(place: Path) -> None:
    """As far as it is there, and may be removed."""
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(OSError):
            place.unlink()
