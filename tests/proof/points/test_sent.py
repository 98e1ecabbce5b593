"""I1, I2, I3: whoever is killed while rows go to destinations, each has them once; so has a line behind another one.

`make faults` kills at every point there is; these are the most telling ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .field import Field, field
from .points import Point
from .sidebyside import side_by_side
from .trial import Outcome, Trial

pytestmark = [pytest.mark.all, pytest.mark.timeout(3000)]

MOVED = "commit: protocol.follow._take > destinations.elsewhere.Elsewhere.apply: UPDATE ratchet_marks.marks"
APPLIED = "commit: destinations.elsewhere.Elsewhere.apply > destinations.elsewhere.Elsewhere._begin: COMMIT"
WRITTEN = "commit: destinations.lake.Lake._write > destinations.lake._written: WRITE a version"
LINKED = "commit: destinations.file_tree.Tree.apply > destinations.file_tree.Tree._add: LINK a record"
SHOWN = "commit: destinations.file_tree.Tree._add > destinations.file_tree.Tree._show: RENAME a directory"
NOTED = "commit: protocol.follow._bring > ledger.steps.reached: UPDATE ratchet.destinations"
SENT = "commit: destinations.kafka_outside.TopicOutside.apply > destinations.kafka_outside.TopicOutside._send: SEND #2"
MARKED = "commit: protocol.follow._take > destinations.kafka_outside.TopicOutside.apply: PUT"
ENDED = "commit: protocol.follow._take > destinations.kafka_outside.TopicOutside.apply: COMMIT"
COMMITTED = "commit: protocol.commit._commit > protocol.commit._commit_in_turn: COMMIT"
WROTE = "spark worker: spark.writing.Writing.__call__ > sinks.writer.Writer.finish: COMMIT"
MERGED = "commit: destinations.lake.Lake._write > destinations.lake.Lake._merged: MERGE a version"
KEPT = "commit: sinks.keyed.Keyed.replace > sinks.exchanged.note: INSERT ratchet.exchanged"
TOUCHED = "commit: protocol.sending._puts > protocol.sending._touching: SELECT ratchet.slices"
BEGUN = "begin: airflow.begin.BeginOperator.execute > protocol.begin.begin: COMMIT #3"

TELLING = {
    "sending": {
        "flow": [
            [Point(APPLIED, "before"), Point(WRITTEN, "after")],
            [Point(LINKED, "after"), Point(NOTED, "before")],
            [Point(LINKED, "before"), Point(SHOWN, "after")],
        ],
        "revised": [
            [Point(SHOWN, "after"), Point(MOVED, "after")],
            [Point(SHOWN + " #2", "before"), Point(WRITTEN, "before")],
            [Point(LINKED, "after"), Point(APPLIED, "after")],
        ],
    },
    "keyed_1": {
        "flow": [[Point(MERGED, "after"), Point(APPLIED, "before")]],
        "rekeyed": [
            [Point(KEPT, "after"), Point(MERGED, "before")],
            [Point(TOUCHED, "after"), Point(APPLIED, "after")],
        ],
    },
    "chained": {
        "flow": [
            [Point(SENT, "after"), Point(ENDED, "before")],
            [Point(ENDED, "after")],
            [Point(MARKED, "after")],
            [Point(COMMITTED, "after"), Point(NOTED, "before")],
        ]
    },
    "onward": {"fed": [[Point(COMMITTED, "before"), Point(WROTE, "after"), Point(BEGUN, "after")]]},
}
"""What is armed for each pipeline while it goes through a scenario, time after time."""


@pytest.fixture(scope="module")
def grounds(scratch: Path) -> Iterator[Field]:
    home = scratch / "sent"
    home.mkdir()
    with field(home, set(TELLING)) as made:
        yield made


@pytest.fixture(scope="module")
def outcomes(grounds: Field) -> list[Outcome]:
    def go_through(line: str) -> list[Outcome]:
        trials = [(scenario, points) for scenario, times in TELLING[line].items() for points in times]
        return [
            outcome
            for scenario, points in trials
            for outcome in Trial(grounds.victims[line], grounds.armoury, scenario, points).run()
        ]

    return [outcome for found in side_by_side(go_through, TELLING) for outcome in found]


@pytest.mark.invariant("I1", "I2", "I3", "I9")
def test_whoever_is_killed_destinations_have_each_row_once(outcomes: list[Outcome]):
    assert [f"{o.line}, {o.scenario}, {o.point}: {o.state}" for o in outcomes if o.state != "whole"] == []
    assert len({o.kill.pid for o in outcomes}) == sum(
        map(len, (p for s in TELLING.values() for t in s.values() for p in t))
    )


@pytest.mark.invariant("I1", "I2")
def test_of_two_lines_one_behind_the_other_the_second_has_each_record_of_the_first_once(
    grounds: Field, outcomes: list[Outcome]
):
    first, second = grounds.victims["chained"], grounds.victims["onward"]
    assert outcomes and first.faults() == second.faults() == []
    sent, taken = (sorted(of.rows_in(f"public.{of.name}_rows")) for of in (first, second))
    assert len(sent) > 400
    assert [row[:2] for row in sent] == [row[:2] for row in taken]
