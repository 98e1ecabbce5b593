"""The timeline of a part: a lane for each pipeline, for each group of faults, and for the operations.

Across, a unit is a second; down, a pixel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from .record import NOT_NOW, STRUCK, CommitRecord, FaultRecord, PartRecord

GROUPS = ("killed", "stopped", "disk", "connections", "clocks", "others")
COMMITS, SHORTEST = 44, 3
"""The height of a pipeline's lane, and of a commit of hardly any records."""
ROW, BAR = 9, 6
"""Faults of a group that overlap lie in rows below one another."""
THINNEST = 0.0018
"""What is shorter than this share of the part is drawn so long, for it to be seen."""
STEPS = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)


@dataclass(frozen=True)
class Mark:
    """A tick, a bar or a dot; the path, and what is said of it where the pointer rests."""

    path: str
    title: str
    kind: str = ""


@dataclass
class Lane:
    """A label, a note below it, and marks."""

    label: str
    note: str
    kind: str
    height: int
    marks: list[Mark] = field(default_factory=list)
    gap: tuple[float, float] | None = None
    """From when, and for how long, no commit came: the longest such time."""


@dataclass(frozen=True)
class Timeline:
    """The lanes of a part, from the first second to the last."""

    part: PartRecord
    lanes: list[Lane]
    seconds: float
    minutes: list[tuple[float, str]]
    """Where a line is drawn for orientation, and the minute that stands there."""

    @classmethod
    def of(cls, part: PartRecord, tallest: dict[str, int]) -> Timeline:
        """The part's own; `tallest` has for each pipeline the records that a tick of full height stands for."""
        seconds = max([part.seconds, *(f.healed_at + (f.recovered_after or 0) for f in part.faults if f.healed_at)])
        lanes = [_commits(part, pipeline, top) for pipeline, top in tallest.items()]
        lanes += _faults(part.faults, seconds)
        if part.operations:
            lanes.append(_operations(part))
        return cls(part, lanes, seconds, _minutes(seconds))


def group(kind: str) -> str:
    """The group that a kind of fault belongs to."""
    if kind.startswith("connection "):
        return "connections"
    for words, name in (
        (" killed", "killed"),
        (" stopped for ", "stopped"),
        ("'s clock ", "clocks"),
        (" disk ", "disk"),
    ):
        if words in kind:
            return name
    return "others"


def clock(seconds: float) -> str:
    """A moment as minutes and seconds since the part began: 7:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def gaps(commits: Iterable[CommitRecord]) -> list[tuple[float, float]]:
    """(length, from when) of the times between one commit of a pipeline and its next."""
    at = sorted(one.at for one in commits)
    return [(later - earlier, earlier) for earlier, later in pairwise(at)]


def _commits(part: PartRecord, pipeline: str, tallest: int) -> Lane:
    mine = [one for one in part.commits if one.pipeline == pipeline]
    longest = max(gaps(mine), default=None)
    note = f"{len(mine):,} commits" + (f", longest gap {clock(longest[0])}" if longest else "")
    lane = Lane(pipeline, note, "commits", COMMITS, gap=(longest[1], longest[0]) if longest else None)
    for one in mine:
        height = max(SHORTEST, (COMMITS - 2) * one.records / max(tallest, 1))
        title = (
            f"{clock(one.at)} {pipeline}: transaction {one.txid}"
            + (f", revision {one.revision}" if one.revision else "")
            + f": {one.records:,} records, epoch {one.epoch}, tries {one.tries}, waited {one.waited:.1f} s"
        )
        path = f"M{_number(one.at)} {COMMITS}v-{_number(height)}"
        lane.marks.append(Mark(path, title, "revision" if one.revision else ""))
    return lane


def _faults(faults: list[FaultRecord], seconds: float) -> list[Lane]:
    of_group: dict[str, list[FaultRecord]] = defaultdict(list)
    for fault in sorted(faults, key=lambda fault: fault.struck_at):
        of_group[group(fault.kind)].append(fault)
    return [_group(name, of_group[name], seconds) for name in GROUPS if of_group[name]]


def _group(name: str, faults: list[FaultRecord], seconds: float) -> Lane:
    """The faults of a group, each in the first row that is free."""
    struck = [fault for fault in faults if fault.what_happened == STRUCK]
    skipped = sum(fault.what_happened == NOT_NOW for fault in faults)
    note = f"{len(struck):,} struck" + (f", {skipped:,} not now" if skipped else "")
    lane = Lane(name, note, name, 0)
    free: list[float] = []
    for fault in faults:
        until = max(_until(fault, seconds), fault.struck_at + THINNEST * seconds)
        end = until + (fault.recovered_after or 0)
        row = next((row for row, at in enumerate(free) if at <= fault.struck_at), len(free))
        free[row : row + 1] = [end + 2 * THINNEST * seconds]
        lane.marks += _bar(fault, until, 2 + row * ROW)
    lane.height = 4 + ROW * len(free)
    return lane


def _bar(fault: FaultRecord, until: float, top: float) -> list[Mark]:
    """From when it struck until it was healed; and, thinner, until every pipeline has committed again."""
    at, title, middle = _number(fault.struck_at), _said(fault), _number(top + BAR / 2)
    if fault.what_happened == NOT_NOW:
        return [Mark(f"M{at} {middle}h0", title, "dot")]
    marks = []
    if fault.recovered_after:
        marks.append(Mark(f"M{_number(until)} {middle}h{_number(fault.recovered_after)}", title, "tail"))
    kind = "bar" if fault.what_happened == STRUCK and fault.healed_at is not None else "bar wrong"
    width = _number(until - fault.struck_at)
    return [*marks, Mark(f"M{at} {_number(top)}h{width}v{BAR}h-{width}z", title, kind)]


def _until(fault: FaultRecord, seconds: float) -> float:
    """Until when it was in effect; one that nobody has healed, until the end."""
    if fault.healed_at is not None:
        return fault.healed_at
    return seconds if fault.what_happened == STRUCK else fault.struck_at


def _said(fault: FaultRecord) -> str:
    healed = f"–{clock(fault.healed_at)}" if fault.healed_at is not None else ""
    said = f"{clock(fault.struck_at)}{healed} {fault.kind}" + (f" ({fault.target})" if fault.target else "")
    if fault.what_happened != STRUCK:
        return f"{said}: {fault.what_happened}"
    if fault.healed_at is None:
        return f"{said}: never healed"
    return (
        said
        if fault.recovered_after is None
        else f"{said}: every pipeline has committed again after {fault.recovered_after:.1f} s"
    )


def _operations(part: PartRecord) -> Lane:
    lane = Lane("operations", f"{len(part.operations):,}", "operations", 13)
    for one in part.operations:
        title = f"{clock(one.at)} {one.what}, {one.pipeline}: {one.said}"
        lane.marks.append(Mark(f"M{_number(one.at)} 6.5h0", title, "dot"))
    return lane


def _minutes(seconds: float) -> list[tuple[float, str]]:
    step = next((step for step in STEPS if seconds / step <= 7), STEPS[-1])
    moments = [step * n for n in range(int(seconds // step) + 1)]
    return [(at, f"{at // 60}" if step >= 60 else clock(at)) for at in moments]


def _number(value: float) -> str:
    """With a digit after the point, where there is need."""
    return f"{value:.1f}".removesuffix(".0")
