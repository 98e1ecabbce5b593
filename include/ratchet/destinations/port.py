"""The port of destinations: what the protocol asks of one, whatever its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ratchet.destinations.dataset import Dataset
from ratchet.errors import DestinationRefused, DestinationUnreachable
from ratchet.sinks.types import SENT
from ratchet.spec.columns import Column
from ratchet.spec.destination import DeclaredDestination
from ratchet.values.endpoint import Endpoint

if TYPE_CHECKING:
    from ratchet.destinations.content import Change, Content, Puts


@dataclass(frozen=True)
class Mark:
    """What a destination says of itself: the number of the step that it took last, and that one's random token."""

    step: int
    token: int

    def __str__(self) -> str:
        return f"step {self.step} ({self.token:016x})"


@dataclass(frozen=True)
class Owner:
    """Whose the rows are: a pipeline and one of its sinks, with the columns that the spec declares."""

    pipeline: str
    sink: str
    fields: tuple[Column, ...]
    renamed: tuple[tuple[str, str], ...] = ()
    """(column, what it was called)."""
    private: bool = False
    """Whether errors must not show values."""
    added: tuple[Column, ...] = SENT
    """The columns that rows have besides."""
    key: tuple[Column, ...] = ()
    """The columns that make a row one of its kind; none where every row is kept."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of the rows."""
        return (*self.fields, *self.added)

    def __str__(self) -> str:
        return f"{self.pipeline}: {self.sink}"


class Undecided(Exception):
    """Somebody changes a destination just now, or has left a change undecided: what it took last is not known."""


class Outside(ABC):
    """A destination that is open for one pipeline and sink.

    All that it does raises DestinationUnreachable where it does not answer, after which nobody knows whether the last
    change was made until its mark is read; DestinationRefused where it does not take what it is given.
    """

    GONE: ClassVar = "its mark is gone"
    """What is said where it was started and has no mark."""

    @abstractmethod
    def mark(self) -> Mark | None:
        """What it took last; None where it has never been started."""

    def look(self) -> Mark | None:
        """`mark`, for somebody who only looks: what others are about to change is left to them.

        Raises Undecided where nobody can say before they are done.
        """
        return self.mark()

    @abstractmethod
    def start(self, mark: Mark) -> None:
        """Give it its first mark, if it has none; nothing changes where it has one, whoever's that is."""

    @abstractmethod
    def apply(self, at: Mark, to: Mark, change: Change | Puts) -> bool:
        """Take the rows and move the mark, both or neither; False, with nothing changed, where the mark is not `at`.

        A `Change` adds the rows of the step after `at`, or has them take the place of those of its transaction. `Puts`
        says of keys which row each has now, or that it has none; what stands under them gives way.
        """

    def counted(self) -> Iterable[tuple[int, int]] | None:
        """(txid, number of rows), of all rows that it has now and that have a txid, by reading them; a txid may come
        several times. None where they cannot be counted.
        """
        return None

    @abstractmethod
    def restart(self, at: Mark | None, to: Mark, content: Content | None) -> bool:
        """Put these rows in place of all that it has, or leave what it has where there are none, and move the mark.

        False, with nothing changed, where the mark is not `at`. DestinationRefused where rows cannot give way.
        """


def no_answer(where: str, said: str) -> DestinationUnreachable:
    """What to raise where a destination does not answer, so that nobody knows whether it has taken the last change."""
    return DestinationUnreachable(
        f"{where}: {said}; what is committed waits for it, and its mark tells what it has taken"
    )


def no_entry(where: str, said: str, owner: Owner, address: str) -> DestinationRefused:
    """What to raise where a destination does not take a change, as it says, and the mark says whether it did."""
    return DestinationRefused(
        f"{where}: {said}; its mark tells what it has taken; correct that there, or `ratchet detach {owner.pipeline} "
        f"{address}`"
    )


Reach = AbstractContextManager[Outside]
Registries = Mapping[str, Endpoint]
"""By their connections."""
NONE: Registries = {}


class Destination(DeclaredDestination, ABC, frozen=True):
    """A declared destination that knows how it is written."""

    @abstractmethod
    def open(self, owner: Owner, by: str, registries: Registries = NONE) -> Reach:
        """The destination, by its connection as text: a libpq URL; as JSON the properties of Kafka's client or of
        pyiceberg's catalog, or the options of an object store; nothing for a path. `registries` has those that it
        names.
        """

    def dataset(self, by: str) -> Dataset | None:
        """What lineage calls it, by the same connection, which it may ask; None where nothing is said of it."""
        return None
