"""The report of a campaign: its parts joined, as one page and as JSON.

`python -m tests.proof.campaign.report PART.json … -o report.html` writes both, report.html and report.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from .page import render
from .record import NOT_NOW, STRUCK, Comparison, FaultRecord, PartRecord, PipelineRecord, SentRecord, Unreadable
from .timeline import gaps

ERRORS = ("lost", "doubled", "foreign", "different")
"""What a comparison can find."""


class NotOne(Exception):
    """Parts that do not belong together."""


@dataclass(frozen=True)
class Wrong:
    """Something that must not be: what, in how many cases, in which part, and what is known of it."""

    what: str
    count: int
    where: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Recovery:
    """How long it took after a kind of fault until every pipeline had committed again; seconds."""

    kind: str
    struck: int
    not_now: int
    measured: int
    """So many times something was committed after it."""
    p50: float | None
    worst: float | None

    @classmethod
    def of(cls, kind: str, faults: Sequence[FaultRecord]) -> Recovery:
        struck = [fault for fault in faults if fault.what_happened == STRUCK]
        took = [fault.recovered_after for fault in struck if fault.recovered_after is not None]
        not_now = sum(fault.what_happened == NOT_NOW for fault in faults)
        p50, worst = (statistics.median(took), max(took)) if took else (None, None)
        return cls(kind, len(struck), not_now, len(took), p50, worst)


@dataclass(frozen=True)
class Asked:
    """A figure, and the least that was asked of it."""

    what: str
    reached: float
    least: float

    @property
    def met(self) -> bool:
        return self.reached >= self.least


class Report:
    """The parts of one campaign. Raises NotOne."""

    def __init__(self, parts: Iterable[PartRecord]):
        self.parts = sorted(parts, key=lambda part: (part.seed, part.number))
        _belong_together(self.parts)
        self.commit = self.parts[0].commit

    @cached_property
    def seeds(self) -> dict[int, int]:
        """{seed: in how many parts its campaign is}."""
        return {part.seed: part.of for part in self.parts}

    @cached_property
    def missing(self) -> list[str]:
        """Parts that are not here."""
        here = {(part.seed, part.number) for part in self.parts}
        every = [(seed, n, of) for seed, of in self.seeds.items() for n in range(1, of + 1)]
        return [f"part {n}/{of}, seed {seed}" for seed, n, of in every if (seed, n) not in here]

    @cached_property
    def faults(self) -> list[FaultRecord]:
        return [fault for part in self.parts for fault in part.faults]

    @cached_property
    def struck(self) -> int:
        return sum(fault.what_happened == STRUCK for fault in self.faults)

    @cached_property
    def pipelines(self) -> list[PipelineRecord]:
        """Each with its counts of all parts."""
        return list(_added(one for part in self.parts for one in part.pipelines))

    @cached_property
    def comparison(self) -> list[Comparison]:
        """Each pipeline's, with its counts of all parts."""
        return list(_added(one for part in self.parts for one in part.comparison))

    @cached_property
    def sent(self) -> list[SentRecord]:
        """Each destination's, with its counts of all parts."""
        return list(_added(one for part in self.parts for one in part.sent))

    @cached_property
    def records(self) -> int:
        """That the witness has read and compared."""
        return sum(one.read for one in self.comparison)

    @cached_property
    def snapshots(self) -> int:
        return sum(part.readings.snapshots for part in self.parts)

    @cached_property
    def offsets(self) -> int:
        """As monitoring tools were told them."""
        return sum(part.readings.offsets for part in self.parts)

    @cached_property
    def readers(self) -> int:
        """In the part that had the fewest."""
        return min(part.readings.readers for part in self.parts)

    @cached_property
    def recovery(self) -> list[Recovery]:
        """By kind of fault, the worst first; those of which nothing is known last."""
        of_kind: dict[str, list[FaultRecord]] = defaultdict(list)
        for fault in self.faults:
            of_kind[fault.kind].append(fault)
        found = [Recovery.of(kind, faults) for kind, faults in of_kind.items()]
        return sorted(found, key=lambda one: (-(one.worst if one.worst is not None else -1), one.kind))

    @cached_property
    def recovered(self) -> Recovery:
        """After all faults of any kind."""
        return Recovery.of("all", self.faults)

    @cached_property
    def tallest(self) -> dict[str, int]:
        """{pipeline: the most records that one commit of it had}, of every pipeline that is named anywhere."""
        most = dict.fromkeys([one.name for one in self.pipelines], 0)
        for one in (one for part in self.parts for one in part.commits):
            most[one.pipeline] = max(most.get(one.pipeline, 0), one.records)
        return most

    @cached_property
    def longest_gap(self) -> dict[str, float]:
        """{pipeline: the most seconds in one part between a commit and the next}."""
        longest: dict[str, float] = {}
        for name in self.tallest:
            found = [gap for part in self.parts for gap, _ in gaps(c for c in part.commits if c.pipeline == name)]
            longest |= {name: max(found)} if found else {}
        return longest

    @cached_property
    def wrong(self) -> list[Wrong]:
        """Everything that must not be, the gravest first."""
        found = [one for part in self.parts for one in _wrong(part)]
        rank = {what: n for n, what in enumerate(dict.fromkeys([*ERRORS, "torn", *(one.what for one in found)]))}
        return sorted(found, key=lambda one: rank[one.what])

    @cached_property
    def asked(self) -> list[Asked]:
        """What a campaign has to reach to show anything."""
        written = sum(one.committed + one.aborted for one in self.pipelines)
        aborted = sum(one.aborted for one in self.pipelines) / written if written else 0.0
        return [
            Asked("faults that struck", self.struck, 1_000),
            Asked("records compared", self.records, 10_000_000),
            Asked("pipelines", len(self.comparison), 5),
            Asked("readers at once", self.readers, 8),
            # A third of the transactions, of which no two have the same size.
            Asked("share of records aborted", aborted, 0.3),
        ]

    @cached_property
    def short(self) -> list[str]:
        """Why the campaign shows less than it should, where nothing is wrong with the code."""
        said = [f"{name} is missing" for name in self.missing]
        for part in self.parts:
            compared = {one.pipeline for one in part.comparison}
            known = {one.name for one in part.pipelines} | {one.pipeline for one in part.commits}
            said += [f"{name} was not compared in {part.name}" for name in sorted(known - compared)]
            if not any(one.rows for one in part.sent):
                said.append(f"no destination was compared in {part.name}")
            if not part.readings.snapshots:
                said.append(f"no snapshot was read in {part.name}")
            if not part.readings.offsets:
                said.append(f"no offset that monitoring is told was read in {part.name}")
        said += [f"nothing to strike was ever found: {one.kind}" for one in self.recovery if not one.struck]
        said += [f"{one.what}: {_figure(one.reached)}, asked {_figure(one.least)}" for one in self.asked if not one.met]
        if "+" in self.commit:
            said.append("files had been changed since the commit")
        return said

    @cached_property
    def state(self) -> str:
        """`wrong`, `short` or `good`."""
        return "wrong" if self.wrong else "short" if self.short else "good"

    @cached_property
    def headline(self) -> str:
        """What has been found, in one line."""
        many = [_many(self.struck, "fault"), _many(self.records, "record")]
        what = f"{', '.join(many)} in {_many(len(self.comparison), 'pipeline')}: "
        counted: Counter[str] = Counter()
        for one in self.wrong:
            counted[one.what] += one.count
        if counted:
            return what + ", ".join(f"{count:,} {said}" for said, count in counted.items())
        nothing = ["nothing lost", "nothing doubled"] if self.records else ["nothing was compared"]
        nothing.append("nothing torn" if self.snapshots else "no snapshot was read")
        return what + ", ".join(nothing)

    @cached_property
    def again(self) -> list[str]:
        """The commands that do the same once more."""
        said = [f"git checkout {self.commit.partition('+')[0]}"]
        for seed, of in self.seeds.items():
            numbers = [part.number for part in self.parts if part.seed == seed]
            if len(numbers) > 2:
                listed = " ".join(map(str, numbers))
                said.append(f"for n in {listed}; do SEED={seed} PART=$n/{of} make campaign; done")
            else:
                said += [f"SEED={seed} PART={number}/{of} make campaign" for number in numbers]
        return said

    def as_json(self) -> dict[str, Any]:
        """All that the page says, and all that it is made from."""
        derived = (
            "commit",
            "state",
            "headline",
            "short",
            "again",
            "struck",
            "records",
            "readers",
            "snapshots",
            "offsets",
        )
        listed = ("wrong", "asked", "pipelines", "comparison", "sent", "recovery")
        return {
            **{name: getattr(self, name) for name in derived},
            **{name: [asdict(one) for one in getattr(self, name)] for name in listed},
            "recovered": asdict(self.recovered),
            "longest_gap": self.longest_gap,
            "parts": TypeAdapter(list[PartRecord]).dump_python(self.parts, mode="json"),
        }

    def save(self, page: Path) -> None:
        """Write the page, and beside it the JSON."""
        page.write_text(render(self), encoding="utf-8")
        page.with_suffix(".json").write_text(json.dumps(self.as_json(), ensure_ascii=False) + "\n", encoding="utf-8")


def _belong_together(parts: Sequence[PartRecord]) -> None:
    if not parts:
        raise NotOne("there is no part to report on")
    commits = {part.commit: part.name for part in reversed(parts)}
    if len(commits) > 1:
        told = "; ".join(f"{name} is of {commit}" for commit, name in sorted(commits.items()))
        raise NotOne(f"parts of different commits cannot be joined: {told}")
    of: dict[int, int] = {}
    for part in parts:
        if part.number > part.of:
            raise NotOne(f"there is no {part.name}")
        if of.setdefault(part.seed, part.of) != part.of:
            raise NotOne(f"the campaign of seed {part.seed} is in {of[part.seed]} parts and in {part.of}")
    twice = [name for name, count in Counter(part.name for part in parts).items() if count > 1]
    if twice:
        raise NotOne(f"given twice: {'; '.join(twice)}")


def _wrong(part: PartRecord) -> Iterator[Wrong]:
    """What must not be, of one part."""
    for one in part.comparison:
        where = f"{one.pipeline}, {part.name}"
        shown = False
        for what in ERRORS:
            if count := getattr(one, what):
                # Examples are of the comparison as a whole.
                yield Wrong(what, count, where, () if shown else tuple(one.examples))
                shown = True
        known = sum(given.committed for given in part.pipelines if given.name == one.pipeline)
        if one.read < known:
            said = f"producers know of {known:,} committed records, the witness has read {one.read:,}"
            yield Wrong("committed and not read by the witness", known - one.read, where, (said,))
    for one in part.sent:
        if one.different:
            where = f"{one.destination}, {part.name}"
            yield Wrong("different in a destination", one.different, where, tuple(one.examples))
    lists = {
        "torn": part.readings.torn,
        "left behind": part.left,
        "wrong in the history": part.history,
        "found by ratchet verify": part.verify,
        "gone wrong in striking or healing": [said for fault in part.faults if (said := _went_wrong(fault))],
    }
    for what, said in lists.items():
        if said:
            yield Wrong(what, len(said), part.name, tuple(said))


def _went_wrong(fault: FaultRecord) -> str | None:
    """How the fault itself did not go as it should; None if it did."""
    target = f" ({fault.target})" if fault.target else ""
    if fault.what_happened not in (STRUCK, NOT_NOW):
        return f"{fault.kind}{target} at {fault.struck_at:.0f} s: {fault.what_happened}"
    if fault.what_happened == STRUCK and fault.healed_at is None:
        return f"{fault.kind}{target} at {fault.struck_at:.0f} s: never healed"
    return None


def _added(ones: Iterable[Any]) -> Iterator[Any]:
    """Records of the same pipeline as one: counts are added, examples joined, words are those of the first."""
    by_name: dict[str, list[Any]] = defaultdict(list)
    for one in ones:
        by_name[getattr(one, fields(one)[0].name)].append(one)
    for same in by_name.values():
        first = same[0]
        told = {field.name: [getattr(one, field.name) for one in same] for field in fields(first)}
        yield type(first)(**{name: _sum(values) for name, values in told.items()})


def _sum(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    return values[0] if isinstance(values[0], str) else sum(values)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _figure(value: float) -> str:
    return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"


def main(said: Sequence[str] | None = None) -> int:
    """The exit status: 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.campaign.report", description=__doc__)
    parser.add_argument("parts", nargs="+", type=Path, metavar="PART.json")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), help="the page; the JSON is beside it"
    )
    given = parser.parse_args(said)
    if given.output.suffix == ".json":
        parser.error("-o is the page's file: write -o report.html")
    try:
        report = Report(PartRecord.load(file) for file in given.parts)
    except (Unreadable, NotOne) as error:
        sys.exit(str(error))
    report.save(given.output)
    print(report.headline)
    for one in report.short:
        print(f"  {one}")
    print(f"{given.output} and {given.output.with_suffix('.json').name}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
