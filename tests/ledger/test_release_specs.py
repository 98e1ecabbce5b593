"""Releases beside specs that change: sinks that come and go, and columns that a deploy changes meanwhile."""

from __future__ import annotations

from functools import partial

import pytest

from ratchet import Append, Json, Topic
from ratchet.errors import NotRevisable
from ratchet.ledger.work import Run
from ratchet.operate import replay
from ratchet.operate.migrate import migrate
from ratchet.operate.replaced import replaced
from ratchet.protocol.begin import begin
from ratchet.protocol.commit import commit
from ratchet.protocol.replays import done_otherwise
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import ROWS, Made

from .releasing import OTHER, SPEC, Line, bad, first, good, released, second, three
from .staging import always_active, contents, do, expire

WITHOUT = SPEC.model_copy(update={"sinks": [sink for sink in SPEC.sinks if sink.name not in (ROWS, "own")]})
"""The same line without two of its sinks."""
WIDER = SPEC.model_copy(update={"sinks": [Append(ROWS, columns="a bigint, b string"), *SPEC.sinks[1:]]})
"""The same line, in which a sink has a column more."""


@pytest.fixture
def line(rich_ledger, log):
    return three(rich_ledger, log)


def worse(partition: int, offset: int) -> Made:
    """What a spec without the sinks makes of a record, half of which are rows there."""
    if offset % 2:
        return bad("worse", partition, offset)
    return {name: rows for name, rows in good("revised", partition, offset).items() if name not in (ROWS, "own")}


def adopted_with(line: Line, spec):
    """The release that lies there, in an epoch of a spec that was deployed since."""
    line.spec = spec
    expire(line.ledger)
    return begin(line.ledger, spec, Run("dag", "deployed"), line.log.offsets, lambda *_: False)


@pytest.mark.invariant("I1")
def test_rows_that_a_spec_without_the_sink_has_left_are_not_added_to(line):
    line.spec = WITHOUT
    line.clear("run_2", worse)
    line.shows(2, worse)
    line.spec = SPEC
    line.is_whole()
    said = f"{ROWS} has rows that revision 1 of transaction 2, of a spec without it, has left; replay the transaction"
    with pytest.raises(NotRevisable, match=said):
        line.ask(2, 2)
    # With that spec it is released; not where the other one is deployed meanwhile.
    line.spec = WITHOUT
    line.ask(2, 2)
    do(line.ledger, WITHOUT, line.begin(), worse)
    adopted = adopted_with(line, SPEC)
    do(line.ledger, SPEC, adopted, partial(good, "third"))
    with pytest.raises(NotRevisable, match=said):
        commit(line.ledger, SPEC, adopted.claim)
    line.is_whole()
    # A revision by a spec that has the sinks replaces all that they have.
    replay.ask(line.ledger, SPEC, 2, 2, "all of it", "amy")
    line.one(second)
    line.shows(2, second)
    line.release(partial(good, "third"), 2, 2)
    line.shows(2, lambda p, o: good("third", p, o) if o % 9 == 0 else second(p, o))
    line.is_whole()


@pytest.mark.invariant("I1")
def test_a_release_is_given_up_where_columns_have_changed_since_it_was_begun(line):
    line.ask(2, 2)
    do(line.ledger, SPEC, line.begin(), second)
    migrate(line.ledger.url, [WIDER])
    adopted = adopted_with(line, WIDER)
    do(line.ledger, WIDER, adopted, second)
    with pytest.raises(NotRevisable, match="was written with columns a bigint, and has a bigint, b string today"):
        commit(line.ledger, WIDER, adopted.claim)
    line.spec = SPEC
    line.is_whole()
    assert begin(line.ledger, WIDER, Run("dag", "next"), line.log.offsets, always_active).reason == "no_records"


@pytest.mark.invariant("I1")
def test_rows_in_a_table_of_ones_own_name_the_topic_that_their_records_are_of(line):
    line.ask(2, 2)
    do(line.ledger, SPEC, line.begin(), second)
    # With another column, since the names of topics alone are no other code.
    source = Topic("other", key="k string", value=Json("a bigint, c int"))
    other = SPEC.model_copy(update={"source": source})
    adopted = adopted_with(line, other)
    do(line.ledger, other, adopted, second)
    commit(line.ledger, other, adopted.claim)
    line.spec = SPEC
    line.shows(2, released)
    line.is_whole()


def test_what_a_replay_would_replace_and_what_was_done_with_other_code_is_the_whole_with_its_releases(line):
    replay.ask(line.ledger, SPEC, 2, 2, "all of it", "amy")
    line.spec = OTHER
    line.one(first)
    line.spec = SPEC
    line.release(second, 2, 2, "number")
    line.release(second, 2, 2, "date")
    line.shows(2, released)
    line.is_whole()
    found = replaced(line.ledger, SPEC.name, (2,))
    assert found.records == len(line.places[2])
    assert found.codes == {SPEC.code_hash: (2,), OTHER.code_hash: (2,)}
    there = contents(line.ledger, SPEC)
    there = {ROWS: [row[-1] for row in there[ROWS]], DEAD_LETTERS: [row[3] for row in there[DEAD_LETTERS]]}
    assert {name: found.rows[name] for name in there} == {name: txids.count(2) for name, txids in there.items()}
    with line.ledger.begin() as conn:
        assert [(row.txid, row.revision) for row in done_otherwise(conn, [SPEC.name])] == [(2, 1)]
