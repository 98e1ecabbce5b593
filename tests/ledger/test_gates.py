"""Gates over staged data, against a real PostgreSQL."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from ratchet import Accumulate, Append, Condition, MaxChange, MaxDeadLetters
from ratchet.errors import Fenced, Refused
from ratchet.ledger.schema import events
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort
from ratchet.protocol import commit as commit_module
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.gates import judge
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.spec.pipeline import DEAD_LETTERS

from .staging import SPEC, appended, do, head, planned, positions, prepare, start, state, vote_of, write


def gated(*gates):
    return SPEC.model_copy(update={"gates": list(gates)})


def few(partition: int, offset: int) -> dict[str, list[dict]]:
    """One row for every fifth record only."""
    return {"rows": [{"a": offset}]} if offset % 5 == 0 else {}


def fail_dead_letters(ledger, spec, begun, number: int) -> None:
    """Vote with the first `number` records of each slice as dead letters and no rows."""
    for part in begun.slices:
        work = take_try(ledger, spec, begun.claim, part.number)
        letters = [
            {"_partition": p, "_offset": o, "key": None, "value": b"?", "headers": None, "error": "no"}
            for p, o in positions(work)[:number]
        ]
        sinks = {sink.name: write(ledger, spec, work, sink.name, []) for sink in spec.sinks}
        sinks[DEAD_LETTERS] = write(ledger, spec, work, DEAD_LETTERS, letters)
        cast_vote(ledger, spec, work.token, vote_of(spec, work, sinks, dead_letters=number))


def verdicts(ledger) -> list[dict]:
    with ledger.begin() as conn:
        found = conn.execute(select(events).where(events.c.detail.has_key("gates")).order_by(events.c.id))
        return [row.detail["gates"] for row in found]


@pytest.mark.parametrize(("number", "passes"), [(3, True), (4, False)])
def test_too_many_dead_letters_are_a_no_with_its_numbers(ledger, log, number, passes):
    spec = gated(MaxDeadLetters(0.3))
    begun = start(ledger, spec, log, "a")
    fail_dead_letters(ledger, spec, begun, number)
    if passes:
        assert commit(ledger, spec, begun.claim).txids == (1,)
    else:
        with pytest.raises(Refused, match="8 of 20 records are dead letters, 0.4; the limit is 0.3"):
            commit(ledger, spec, begun.claim)
        assert state(ledger, 1) == State.ABORTED
    (said,) = verdicts(ledger)
    numbers = said["at most 0.3 of the records are dead letters"]
    assert (numbers["yes"], numbers["dead_letters"], numbers["records"]) == (passes, 2 * number, 20)


def test_a_change_in_rows_against_the_last_transactions_is_a_no(ledger, log):
    spec = gated(MaxChange("rows", 2))
    log.stable = {0: 200, 1: 200}
    for run in "abc":
        begun = start(ledger, spec, log, run)
        prepare(ledger, spec, begun)
        commit(ledger, spec, begun.claim)
    begun = start(ledger, spec, log, "d")
    do(ledger, spec, begun, few)
    with pytest.raises(
        Refused, match=r"rows has 4 rows of 20 records, 0.2 each; the median of the last 3 .* is 1, so 0.5 to 2"
    ):
        commit(ledger, spec, begun.claim)
    assert head(ledger) == 3


def test_a_condition_sees_exactly_the_voted_rows_and_other_tables(ledger, log):
    counts = "(select count(*) from rows) = 20 and (select sum(n) from totals) = 20"
    asked = f"{counts} and not exists (select from dead_letters)"
    heads = "(select txid from ratchet.heads where pipeline = 'line') = 0"
    spec = gated(Condition("complete", f"{asked} and {heads}"))
    begun = start(ledger, spec, log, "a")
    work = take_try(ledger, spec, begun.claim, 0)
    write(ledger, spec, work, "rows", [{"a": 1, "_partition": 0, "_offset": 1, "_n": 0}], attempt=99)
    prepare(ledger, spec, begun)
    assert commit(ledger, spec, begun.claim).txids == (1,)
    assert appended(ledger) == planned(begun)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("(select count(*) from rows) = 7", "is false"),
        ("null", "null is null"),
        ("nonsense(", "it cannot be evaluated"),
        ("(select max(a) from rows) > 'x%s'", "it cannot be evaluated: invalid input syntax"),
        ("(select true from pg_notify('x', 'y')) and (select setval('x', 1)) > 0", "it cannot be evaluated"),
    ],
)
def test_a_condition_that_is_not_true_is_a_no(ledger, log, sql, why):
    spec = gated(MaxDeadLetters(1), Condition("wanted", sql))
    begun = start(ledger, spec, log, "a")
    prepare(ledger, spec, begun)
    with pytest.raises(Refused, match=f"gate 'wanted': .*{why}"):
        commit(ledger, spec, begun.claim)
    assert (state(ledger, 1), appended(ledger)) == (State.ABORTED, [])


def test_gates_are_asked_once_an_epoch_and_anew_in_the_next(ledger, log):
    spec = gated(Condition("even", "(select count(*) from rows) = 4"))
    begun = start(ledger, spec, log, "a")
    prepare(ledger, spec, begun)
    with pytest.raises(Refused):
        commit(ledger, spec, begun.claim)
    settle(ledger, spec, Run("dag", "a"), succeeded=False, reason="refused")
    again = start(ledger, spec, log, "b")
    do(ledger, spec, again, few)
    for _ in range(2):
        commit(ledger, spec, again.claim)
    assert [said["even"]["yes"] for said in verdicts(ledger)] == [False, True]


@pytest.mark.invariant("I3")
def test_a_successor_is_not_taken_along_before_its_gates_have_said_yes(ledger, log):
    """Nor does one whose gates say no take its predecessors with it."""
    spec = gated(Condition("not the second", "(select min(a) from rows) <> 10"))
    log.stable = {0: 200, 1: 200}
    first, second, third = (start(ledger, spec, log, r) for r in "abc")
    for begun in (first, second, third):
        prepare(ledger, spec, begun)
    with ledger.begin() as conn:
        row = read_transaction(conn, "line", 3)
    judge(ledger, spec, row)
    assert commit(ledger, spec, first.claim).txids == (1,)
    with pytest.raises(Refused, match="not the second"):
        commit(ledger, spec, second.claim)
    assert (head(ledger), state(ledger, 3)) == (1, State.PREPARED)
    assert appended(ledger) == planned(first)


def test_an_epoch_that_began_while_the_gates_were_asked_is_not_committed_unseen(ledger, log, monkeypatch):
    """Between the verdict and the commit lock a person aborts, and another run prepares other rows."""
    spec = gated(Condition("whole", "(select count(*) from rows) = 20"))
    begun = start(ledger, spec, log, "a")
    prepare(ledger, spec, begun)

    def interrupted(*asked):
        judge(*asked)
        monkeypatch.undo()
        abort(ledger, spec, 1, "wrong day", "somebody")
        settle(ledger, spec, Run("dag", "a"), succeeded=False, reason="aborted")
        do(ledger, spec, start(ledger, spec, log, "b"), few)

    monkeypatch.setattr(commit_module, "judge", interrupted)
    with pytest.raises(Fenced, match="run b has it now, in epoch 2, which no gate has seen"):
        commit(ledger, spec, begun.claim)
    assert (head(ledger), appended(ledger)) == (0, [])


def test_a_judged_successor_is_taken_along(ledger, log):
    spec = gated(MaxDeadLetters(0.5))
    first, second = start(ledger, spec, log, "a"), start(ledger, spec, log, "b")
    prepare(ledger, spec, second)
    commit(ledger, spec, second.claim)
    prepare(ledger, spec, first)
    assert commit(ledger, spec, first.claim).txids == (1, 2)


def test_the_sums_of_a_gate_name_only_sinks_that_there_are():
    from ratchet import Json, Pipeline, Topic
    from ratchet.errors import SpecError

    with pytest.raises(SpecError, match="MaxChange names 'nothing'"):
        Pipeline(
            name="p",
            source=Topic("t", value=Json("a int")),
            transform="x:y",
            sinks=[Append("s", columns="a int"), Accumulate("c", key="a int", count="n")],
            gates=[MaxChange("nothing", 2)],
        )


def test_who_comes_to_ask_the_gates_when_all_is_committed_is_told_nothing(ledger, log):
    spec = gated(Condition("whole", "(select count(*) from rows) = 20"))
    begun = start(ledger, spec, log, "a")
    prepare(ledger, spec, begun)
    with ledger.begin() as conn:
        seen = read_transaction(conn, "line", 1)
    assert commit(ledger, spec, begun.claim).txids == (1,)
    judge(ledger, spec, seen)
    assert len(verdicts(ledger)) == 1
