"""Rows of a key that a person erases from an Append: the others stay, and all that knows of rows knows of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import func, select, text

from ratchet import Accumulate, Append
from ratchet.errors import IllegalMove, NotRevisable, SettingsError
from ratchet.ledger import history
from ratchet.ledger.schema import erasures
from ratchet.ledger.work import Run
from ratchet.operate.drop import drop
from ratchet.operate.erase import erase, key_given, lines_of
from ratchet.operate.migrate import migrate
from ratchet.operate.replay import ask
from ratchet.operate.verify import recompute, verify
from ratchet.protocol.begin import begin
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.databases import Databases

from .grown import GROWN, Grown, copied, make_of
from .staging import SPEC, always_active, contents, do, start

SPARE = GROWN.model_copy(
    update={
        "name": "spare",
        "sinks": [
            Append("every", columns="a bigint, b string not null"),
            Append("others", columns="a bigint"),
            Append("mine", columns="a bigint, b string", existing=True),
            Accumulate("totals", key="k string", sum="a bigint", max="a bigint", count="n"),
        ],
    }
)


OWN = "create table mine (a bigint, b text, _topic text, _partition int, _offset bigint, _n int, _txid bigint)"


def grow(line: Grown) -> None:
    """Three committed, the second revised, one voided, one more committed."""
    for _ in range(3):
        line.committed()
    line.voided()
    line.committed()
    line.revised(2, 2)


@pytest.fixture
def line(databases: Databases) -> Iterator[Grown]:
    """A line of which something is to be erased."""
    with copied(databases, SPARE, grow, OWN) as line:
        yield line


def rows_of(line: Grown, sink: str) -> list[tuple]:
    return contents(line.ledger, line.spec)[sink]


def faults(line: Grown) -> list[str]:
    return [fault for check in verify(line.ledger, line.spec) for fault in check.faults]


def some(line: Grown, sink: str, column: int) -> object:
    """A value that rows of several transactions have, and others have not."""
    rows = rows_of(line, sink)
    by_value = {row[column]: {r[-1] for r in rows if r[column] == row[column]} for row in rows}
    return next(value for value, txids in by_value.items() if 1 < len(txids) and value is not None)


@pytest.mark.parametrize(
    "sink, place, column", [("every", 0, "a"), ("every", 1, "b"), ("mine", 0, "a"), ("others", 0, "a")]
)
def test_the_rows_of_a_key_are_gone_the_others_stay_and_all_is_verified(line, sink, place, column):
    before, value = contents(line.ledger, line.spec), some(line, sink, place)
    done = erase(line.ledger, line.spec, sink, {column: str(value)}, "asked for", "me")
    gone = [row for row in before[sink] if row[place] == value]
    assert sum(done.rows.values()) == len(gone) > 1 and set(done.rows) == {row[-1] for row in gone}
    after = contents(line.ledger, line.spec)
    assert after.pop(sink) == [row for row in before.pop(sink) if row[place] != value]
    assert after == before
    assert faults(line) == []
    # What comes later is verified as ever, and may be erased as well.
    line.committed()
    more = erase(line.ledger, line.spec, sink, {column: str(value)}, "asked for again", "me")
    assert set(more.rows) <= {6} and faults(line) == []


@pytest.mark.parametrize("private", [False, True])
def test_rows_that_were_written_with_other_columns_are_erased_and_noted_as_they_were(line, private):
    """One column has come, and another has gone, since the first of them."""
    for columns in ("a bigint, b string not null, c int", "a bigint, c int"):
        sinks = [Append("every", columns=columns), *SPARE.sinks[1:]]
        line.migrated(SPARE.model_copy(update={"private": private, "sinks": sinks}))
        line.committed()
        line.committed()
        rows = [row for row in rows_of(line, "every") if row[0] is not None]
        # One that old and new rows have.
        txids = {row[0]: sorted(r[-1] for r in rows if r[0] == row[0]) for row in rows}
        value = max(txids, key=lambda a: txids[a][-1] - txids[a][0])
        gone = [row for row in rows if row[0] == value]
        done = erase(line.ledger, line.spec, "every", {"a": str(value)}, "why", "me")
        assert sum(done.rows.values()) == len(gone) and min(done.rows) < 4 < max(done.rows)
        assert value not in {row[0] for row in rows_of(line, "every")} and faults(line) == []


def test_what_is_noted_holds_no_value_and_history_says_who_and_why(line):
    value = some(line, "every", 1)
    done = erase(line.ledger, line.spec, "every", {"b": str(value)}, "a letter of June", "somebody")
    with line.ledger.begin() as conn:
        noted = conn.execute(select(erasures)).all()
        events = [event for event in history.read(conn, line.spec.name) if event.move == "erase"]
    assert [(row.txid, row.rows, row.who, row.reason) for row in noted] == [
        (txid, rows, "somebody", "a letter of June") for txid, rows in done.rows.items()
    ]
    assert [(event.txid, event.detail["rows"], event.detail["why"]) for event in events] == [
        (txid, rows, "a letter of June") for txid, rows in done.rows.items()
    ]
    assert repr(value) not in repr([*noted, *events])


def test_a_dry_run_says_the_same_and_changes_nothing(line):
    before, value = contents(line.ledger, line.spec), some(line, "every", 0)
    tried = erase(line.ledger, line.spec, "every", {"a": str(value)}, "why", "me", dry_run=True)
    assert contents(line.ledger, line.spec) == before and faults(line) == []
    done = erase(line.ledger, line.spec, "every", {"a": str(value)}, "why", "me")
    assert tried.rows == done.rows
    assert lines_of(tried) == [*lines_of(done), "this was a dry run: nothing was changed"]


def test_rows_that_are_erased_are_not_brought_back_by_a_revision(line):
    value = some(line, "every", 0)
    owners = dict(line.owners)
    first, second, *_ = erase(line.ledger, line.spec, "every", {"a": str(value)}, "why", "me", dry_run=True).rows
    begun = start(line.ledger, line.spec, line.log, owners[first], 7)
    do(line.ledger, line.spec, begun, make_of(line.spec, 9))
    erase(line.ledger, line.spec, "every", {"a": str(value)}, "why", "me")
    after = contents(line.ledger, line.spec)
    # One that was begun before.
    with pytest.raises(NotRevisable, match=f"transaction {first}: rows of it were erased .*; the old result stays"):
        commit(line.ledger, line.spec, begun.claim)
    with pytest.raises(NotRevisable, match="rows of it were erased"):
        begin(line.ledger, line.spec, Run("dag", owners[second], 8), line.log.offsets, always_active)
    with pytest.raises(NotRevisable, match="nothing is asked for: .*rows of it were erased"):
        ask(line.ledger, line.spec, first, first, "for the test", "me")
    assert contents(line.ledger, line.spec) == after and faults(line) == []


@pytest.mark.parametrize(
    "damage, said",
    [
        ("delete from ratchet.erasures where txid = {txid}", "its votes say"),
        ("update ratchet.erasures set rows = rows + 1 where txid = {txid}", "its votes say"),
        ("update ratchet.erasures set checksum = checksum - 1 where txid = {txid}", "other contents than its votes"),
        ('delete from ratchet_delta."public.every" where ctid = (select min(ctid) from ratchet_delta."public.every" '
         "where _txid = {txid})", "its votes say"),
    ],
)  # fmt: skip
def test_a_row_more_or_less_than_was_erased_is_found(line, damage, said):
    erased = erase(line.ledger, line.spec, "every", {"a": str(some(line, "every", 0))}, "why", "me").rows
    left = {row[-1] for row in rows_of(line, "every")}
    txid = next(txid for txid in erased if txid in left)
    with line.ledger.begin() as conn:
        conn.execute(text(damage.format(txid=txid)))
    (fault,) = faults(line)
    assert f"every: transaction {txid} has" in fault and said in fault


def test_what_is_erased_or_has_expired_is_not_recomputed(line):
    erased = erase(line.ledger, line.spec, "every", {"a": str(some(line, "every", 0))}, "why", "me").rows
    given: list[int] = []

    def run(works) -> dict[str, tuple[int, int]]:
        given.append(works[0].token.txid)
        return {}

    found = recompute(line.ledger, line.spec, run)
    assert given == [1, 2, 3, 5]
    told = {int(fault.split()[1].rstrip(":")) for fault in found.faults if " every has" in fault}
    assert told == {1, 2, 3, 5} - set(erased)


CANNOT = [
    ("everything", {"a": "1"}, "there is no sink 'everything'; it has every, others, mine, totals"),
    ("totals", {"k": "1"}, "totals keeps no rows of their own, but a state for each key"),
    ("every", {"c": "1"}, "every has no column 'c'; it has a, b"),
    ("every", {"a": "xyzzy"}, "a value is none of its column's type"),
    ("every", {"a": "9" * 40}, "a value is none of its column's type"),
]


def test_what_cannot_be_erased_is_said_and_nothing_is_changed(line):
    before = contents(line.ledger, line.spec)
    for sink, key, said in CANNOT:
        with pytest.raises(SettingsError) as raised:
            erase(line.ledger, line.spec, sink, key, "why", "me")
        assert said in str(raised.value) and "xyzzy" not in str(raised.value)
    assert contents(line.ledger, line.spec) == before


@pytest.mark.parametrize("said", [["a"], ["=1"], ["a=1", "a=2"]])
def test_a_key_is_columns_with_a_value_each(said):
    with pytest.raises(SettingsError, match="give each column once, with its value"):
        key_given(said)
    assert key_given(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


def test_a_table_that_is_not_the_pipelines_own_keeps_its_rows(line):
    """A spec that nobody has migrated names another line's table; or its sink is of another kind since."""
    before = contents(line.ledger, line.spec)
    other = line.spec.model_copy(update={"name": "second", "sinks": line.spec.sinks[:1]})
    beside = SPEC.model_copy(update={"name": "second", "sinks": [Append("beside", columns="a bigint")]})
    migrate(line.ledger.url, [beside])
    start(line.ledger, beside, line.log, "x")
    kind = line.spec.model_copy(update={"sinks": [*line.spec.sinks[:3], Append("totals", columns="k string")]})
    for spec, sink, key in ((other, "every", {"a": "1"}), (kind, "totals", {"k": "0-a"})):
        with pytest.raises(SettingsError, match="nothing was erased"):
            erase(line.ledger, spec, sink, key, "why", "me")
    assert contents(line.ledger, line.spec) == before and faults(line) == []


def test_rows_to_which_others_refer_stay_and_the_refusal_quotes_no_value(line):
    with line.ledger.begin() as conn:
        conn.execute(text("alter table mine add unique (_partition, _offset, _txid)"))
        refers = "foreign key (p, o, t) references mine (_partition, _offset, _txid)"
        conn.execute(text(f"create table notes (p int, o bigint, t bigint, {refers})"))
        conn.execute(text("insert into notes select _partition, _offset, _txid from mine"))
    before = contents(line.ledger, line.spec)
    with pytest.raises(SettingsError) as raised:
        erase(line.ledger, line.spec, "mine", {"b": "p"}, "why", "me")
    said = "spare: mine: constraint notes_p_o_t_fkey of a table that refers to such rows (23503); nothing was erased"
    assert str(raised.value) == said and raised.value.__cause__ is None
    assert contents(line.ledger, line.spec) == before


def test_what_may_still_bring_rows_is_said(line):
    line.begin()
    start(line.ledger, line.spec, line.log, line.owners[1], 7)
    done = erase(line.ledger, line.spec, "every", {"a": "17"}, "why", "me")
    assert done.beyond == 2 and "2 transactions and revisions are not committed yet" in lines_of(done)[-1]


def test_of_a_replay_those_are_left_out_of_which_rows_were_erased(line):
    for txid in (1, 3):
        place = rows_of(line, "every")
        row = next(row for row in place if row[-1] == txid)
        position = {"_partition": str(row[-4]), "_offset": str(row[-3])}
        assert erase(line.ledger, line.spec, "every", position, "why", "me").rows == {txid: 1}
    asked = ask(line.ledger, line.spec, 1, 3, "for the test", "me")
    assert asked.txids == (2,) and [txid for txid, _ in asked.left_out] == [1, 3]
    assert all(why.startswith("rows of it were erased") for _, why in asked.left_out)


def test_of_a_line_that_has_not_begun_nothing_is_erased(ledger):
    migrate(ledger.url, [SPEC])
    with pytest.raises(IllegalMove, match="has nothing of pipeline line"):
        erase(ledger, SPEC, "rows", {"a": "1"}, "why", "me")


def test_dead_letters_are_erased_by_their_place(line):
    run, begun = line.begin()
    letter = {"topic": "t", "topic_id": "first", "error": "why", "value": b"a name"}
    do(line.ledger, line.spec, begun, lambda _, __: {DEAD_LETTERS: [letter]})
    commit(line.ledger, line.spec, begun.claim)
    letters = rows_of(line, DEAD_LETTERS)
    _, partition, offset = letters[0][:3]
    place = {"_partition": str(partition), "_offset": str(offset), "_txid": str(begun.claim.txid)}
    assert erase(line.ledger, line.spec, DEAD_LETTERS, place | {"_txid": "1"}, "why", "me").rows == {}
    done = erase(line.ledger, line.spec, DEAD_LETTERS, place, "why", "me")
    assert done.rows == {begun.claim.txid: 1}
    assert rows_of(line, DEAD_LETTERS) == letters[1:] and faults(line) == []


def test_what_is_noted_goes_with_the_line(line):
    erase(line.ledger, line.spec, "every", {"a": str(some(line, "every", 0))}, "why", "me")
    with line.ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set claim_ended = true"))
    drop(line.ledger, line.spec.name, "why", "me")
    with line.ledger.begin() as conn:
        assert conn.execute(select(func.count()).select_from(erasures)).scalar_one() == 0
