"""Which points are armed when, and that none is forgotten."""

from __future__ import annotations

from random import Random

import pytest

from tests.proof.parts import Part

from .catalogue import Catalogue
from .inject.ratchet_points.naming import said
from .killing import ATTEMPTS, Agenda
from .points import Kill, Point, is_killable
from .trial import Outcome

POINTS = [Point(f"{role}: step {n}", side) for role in ("begin", "commit") for n in range(8) for side in ("before",)]
CATALOGUE = Catalogue({point: {"connect:flow": 2, "submit:alone": 1} for point in POINTS})


def outcome(point: Point, *, fired: bool) -> Outcome:
    return Outcome(point, "flow", "connect_1", Kill(1, 0.0) if fired else None, 1.0 if fired else None, ())


def test_the_parts_have_every_point_and_none_twice():
    parts = [Part(number, 3, 7).mine(CATALOGUE.shuffled(7)) for number in (1, 2, 3)]
    assert sorted(point for part in parts for point in part) == sorted(POINTS)
    assert CATALOGUE.shuffled(7) == CATALOGUE.shuffled(7) != CATALOGUE.shuffled(8)


def test_two_of_a_role_are_armed_at_once_and_no_point_for_two_pipelines():
    agenda = Agenda(CATALOGUE, list(POINTS), Random(1))
    taken = [agenda.take(line) for line in ("connect_1", "connect_2", "submit")]
    armed = [point for _, points in taken for point in points]
    assert len(armed) == len(set(armed)) == 12
    assert all(sum(p.role == role for p in points) == 2 for _, points in taken for role in ("begin", "commit"))
    assert agenda.take("compacting") is None


def test_what_is_not_reached_is_armed_again_at_last_alone_and_then_given_up():
    agenda = Agenda(CATALOGUE, POINTS[:3], Random(1))
    armed: list[int] = []
    while taken := agenda.take("connect_1"):
        armed.append(len(taken[1]))
        agenda.give_back([outcome(point, fired=point != POINTS[0]) for point in taken[1]])
    assert agenda.is_done() and len([n for n in armed if n]) >= ATTEMPTS
    assert agenda.attempts[POINTS[0]] == ATTEMPTS and armed[-1] == 1
    assert agenda.attempts[POINTS[1]] == 1


def test_what_is_passed_once_in_a_lines_life_is_armed_in_every_other_scenario_before_one_is_repeated():
    point = POINTS[0]
    agenda = Agenda(Catalogue({point: {"connect:flow": 9, "connect:grown": 1, "submit:alone": 9}}), [point], Random(1))
    tried: list[str] = []
    while not agenda.is_done():
        for line in ("submit", "connect_1"):
            if taken := agenda.take(line):
                tried.append(taken[0])
                agenda.give_back([Outcome(point, taken[0], line, None, None, ())])
    assert len(tried) == ATTEMPTS and set(tried[:3]) == {"flow", "grown", "alone"}


def test_a_pipeline_that_has_left_is_not_waited_for():
    point = POINTS[0]
    agenda = Agenda(Catalogue({point: {"connect:flow": 1, "submit:alone": 1}}), [point], Random(1))
    agenda.take("submit")
    agenda.give_back([Outcome(point, "alone", "submit", None, None, ())])
    assert agenda.take("connect_1") is not None and agenda.take("submit") is None
    agenda.give_back([outcome(point, fired=False)])
    agenda.leave("connect_1")
    assert agenda.take("submit") == ("alone", [point])


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("UPDATE ratchet.heads SET txid=$1 WHERE pipeline = $2", "UPDATE ratchet.heads"),
        ("SELECT epoch FROM ratchet.transactions WHERE txid = $1 FOR UPDATE", "LOCK ratchet.transactions"),
        ("SELECT epoch FROM ratchet.transactions WHERE txid = $1", "SELECT ratchet.transactions"),
        ('copy "ratchet_stage"."line_12_1_0" from stdin (format binary)', "COPY ratchet_stage.*_0"),
        ("CREATE TABLE ratchet_stage.line_3_2_1 (k text)", "CREATE ratchet_stage.*_1"),
        ("\nDROP TABLE IF EXISTS ratchet_stage.line_3_2_1", "DROP ratchet_stage.*_1"),
        ("INSERT INTO public.line_rows (k) SELECT k FROM ratchet_stage.line_3_2_0", "INSERT public.*_rows"),
        ("WITH x AS (SELECT 1) DELETE FROM public.line_last USING x", "DELETE public.*_last"),
        ("WITH x AS (SELECT FOR NO KEY UPDATE OF t) UPDATE ratchet.heads t SET txid = 1", "UPDATE ratchet.heads"),
        ("DROP TABLE anew_line_last", "DROP anew_*_last"),
        ("SELECT pg_notify($1, $2)", "NOTIFY"),
        ('listen "ratchet_line"; unlisten "ratchet_other"', "LISTEN"),
        ("SAVEPOINT sa_savepoint_3", "SAVEPOINT"),
        ("COMMIT", "COMMIT"),
    ],
)
def test_a_statement_is_named_by_what_it_does_to_which_table(statement: str, name: str):
    assert said(statement.encode(), "line") == name


@pytest.mark.parametrize(
    ("name", "killed"),
    [
        ("commit: commit.advance > transactions.move_head: UPDATE ratchet.heads #3", True),
        ("commit: commit.advance > transactions.move_head: UPDATE ratchet.heads #4", False),
        ("commit: protocol.commit._commit > protocol.gates.judge: BEGIN ISOLATION LEVEL REPEATABLE READ", False),
        ("begin: begin.begin > begin._register: SELECT pg_type", False),
        ("commit: leftovers.discard_finished > sinks.stage.drop: DEALLOCATE ALL", False),
        ("begin: begin.begin > begin._register: connect", True),
        ("maintenance: status.status > status._standing: SELECT ratchet.slices", True),
        ("maintenance: status.status > status._standing: SELECT ratchet.slices #2", False),
        ("commit: protocol.commit._commit > ledger.transactions.read_transaction: LOCK ratchet.transactions #2", True),
        ("runner: begin.begin > begin._register: INSERT ratchet.pipelines", False),
    ],
)
def test_what_opens_a_connection_or_reads_once_more_is_no_step(name: str, killed: bool):
    assert is_killable(Point(name, "before")) is killed
