"""A column that is renamed keeps its values, in every kind of sink, and what was committed before stays verifiable."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from ratchet import Accumulate, Append, Json, Pipeline, Topic, Upsert
from ratchet.errors import NotMigrated, OtherCode, RatchetError
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort
from ratchet.operate.erase import erase
from ratchet.operate.migrate import differences, lines_of, migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.sinks.tables import Made
from ratchet.spec.parts import DeclaredSink

from .changes import with_sinks
from .grown import Grown
from .staging import Log, always_active, do, start

OLD = Pipeline(
    name="line",
    source=Topic("t", key="k string", value=Json("a bigint, b string, at bigint, j string")),
    transform="tests.ledger.staging:rows_of",
    sinks=[
        Append("every", columns="a bigint, b string", indexes=("a", "a, b", "b")),
        Append("mine", columns="a bigint, b string", existing=True),
        Accumulate("totals", key="k string, j string", sum="a bigint", max="a bigint", count="n"),
        Upsert("latest", key="k string", columns="a bigint, b string"),
        Upsert("newest", key="j string not null, k string", columns="at bigint, a bigint", order="at"),
    ],
    max_records=20,
    slice_records=10,
    max_in_flight=4,
)
NEW = with_sinks(
    OLD,
    Append("every", columns="x bigint, b string", indexes=("x", "x, b", "b"), renamed={"x": "a"}),
    Append("mine", columns="x bigint, b string", existing=True, renamed={"x": "a"}),
    Accumulate(
        "totals",
        key="k string, of string",
        sum="x bigint",
        max="x bigint",
        count="times",
        renamed={"x": "a", "of": "j", "times": "n"},
    ),
    Upsert("latest", key="k string", columns="x bigint, b string", renamed={"x": "a"}),
    Upsert(
        "newest",
        key="of string not null, k string",
        columns="since bigint, a bigint",
        order="since",
        renamed={"of": "j", "since": "at"},
    ),
)
LATER = with_sinks(NEW, *(sink.model_copy(update={"renamed": ()}) for sink in NEW.sinks))
"""The same once it is done."""
OWN = (
    "create table mine (a bigint, b text, _topic text not null, _partition int not null, _offset bigint not null, "
    "_n int not null, _txid bigint not null)"
)


def rows_of(spec: Pipeline):
    """The same values of each record, by whatever names a spec has for them, and for those that it had before."""

    def make(partition: int, offset: int) -> dict[str, list[dict]]:
        k, j, number = f"k{partition}{offset % 3}", f"j{offset % 2}", offset % 7
        values = {"k": k, "a": number, "b": None if offset % 5 else "z", "at": offset % 4, "j": j, "n": 1}
        values |= {"a_sum": number, "a_max": number, "_deleted": offset % 11 == 10}
        values |= {"x": values["a"], "y": values["a"], "x_sum": number, "x_max": number, "times": 1}
        values |= {"of": j, "since": values["at"]}
        found: dict[str, list[dict]] = {}
        for sink in spec.sinks:
            names = [c.name for c in sink.working.written if c.name in values]
            row = {name: values[name] for name in names}
            if {"a", "x"} <= row.keys():
                row["a"] = number + 1
            if row.get("_deleted"):
                stays = {*sink.key_names, "_deleted", sink.order}
                row = {name: value if name in stays else None for name, value in row.items()}
            found[sink.name] = [row]
        return found

    return make


class Line:
    """A line that goes on with one spec after another."""

    def __init__(self, ledger: Ledger, log: Log):
        self.ledger, self.log, self.runs = ledger, log, 0

    def begun(self, spec: Pipeline):
        self.runs += 1
        return f"run {self.runs}", start(self.ledger, spec, self.log, f"run {self.runs}")

    def one(self, spec: Pipeline) -> int:
        run, begun = self.begun(spec)
        do(self.ledger, spec, begun, rows_of(spec))
        commit(self.ledger, spec, begun.claim)
        settle(self.ledger, spec, Run("dag", run), succeeded=True)
        return begun.claim.txid

    def revise(self, spec: Pipeline, run: str) -> None:
        begun = start(self.ledger, spec, self.log, run, 1)
        do(self.ledger, spec, begun, rows_of(spec))
        commit(self.ledger, spec, begun.claim)
        settle(self.ledger, spec, Run("dag", run, 1), succeeded=True)

    def foreseen(self, spec: Pipeline) -> list[Made]:
        with self.ledger.snapshot() as conn:
            return differences(conn, spec)

    def faults(self, spec: Pipeline) -> list[str]:
        return Grown(self.ledger, spec).faults()

    def seen(self, *names: str) -> dict[str, list[tuple]]:
        """{table: its rows}, without the names of the columns."""
        with self.ledger.begin() as conn:
            return {
                name: sorted(map(repr, conn.execute(text(f"select * from {name}")).all()))  # noqa: S608
                for name in names or [sink.name for sink in OLD.sinks]
            }

    def run(self, *statements: str) -> None:
        with self.ledger.begin() as conn:
            for statement in statements:
                conn.execute(text(statement))

    def columns(self, table: str) -> list[str]:
        with self.ledger.begin() as conn:
            return list(conn.execute(text(f"select * from {table} limit 0")).keys())  # noqa: S608


@pytest.fixture
def line(ledger_url: str, log: Log) -> Iterator[Line]:
    with psycopg.connect(ledger_url) as conn:
        conn.execute(OWN)
    migrate(ledger_url, [OLD])
    with Ledger(ledger_url) as ledger:
        log.stable = {0: 500, 1: 500}
        yield Line(ledger, log)


def test_a_column_of_any_sink_is_renamed_with_its_values_and_all_stays_verified(line):
    line.one(OLD), line.one(OLD)
    line.run("create view theirs as select a, count(*) as n from every group by a")
    seen, theirs = line.seen(), line.seen("theirs")
    assert line.faults(OLD) == []
    with pytest.raises(NotMigrated, match="'every': a is not renamed to x yet; nothing was begun; `ratchet migrate`"):
        begin(line.ledger, NEW, Run("dag", "early"), line.log.offsets, always_active)
    line.run("alter table mine rename column a to x")
    tried = migrate(line.ledger.url, [NEW], dry_run=True)
    assert line.columns("every")[0] == "a"
    foreseen = line.foreseen(NEW)
    done = migrate(line.ledger.url, [NEW], who="a tester")
    assert list(done.sinks) == foreseen
    assert lines_of(tried)[:-1] == lines_of(done)
    assert lines_of(done)[1:4:2] == [
        "line: every: renamed a of ratchet_delta.public.every to x",
        "line: totals: renamed a_sum of public.totals to x_sum, renamed a_max of public.totals to x_max, renamed a_sum "
        "of ratchet_delta.public.totals to x_sum, renamed a_max of ratchet_delta.public.totals to x_max, renamed j of "
        "public.totals to of, renamed j of ratchet_delta.public.totals to of, renamed n of public.totals to times, "
        "renamed n of ratchet_delta.public.totals to times",
    ]
    assert (line.seen(), line.seen("theirs")) == (seen, theirs)
    assert line.columns("every")[:2] == ["x", "b"] and line.columns("theirs") == ["a", "n"]
    assert line.columns("totals")[:5] == ["k", "of", "x_sum", "x_max", "times"]
    for spec in (NEW, LATER):
        assert line.faults(spec) == []
        assert not any(made.is_change for made in (*line.foreseen(spec), *migrate(line.ledger.url, [spec]).sinks))
    # What follows, a revision of what was there before, and of it again.
    line.one(LATER)
    line.revise(LATER, "run 1")
    assert line.faults(LATER) == []
    Grown(line.ledger, LATER).compacted(1)
    assert line.faults(LATER) == []
    with line.ledger.begin() as conn:
        (event,) = history.read(conn, "line", 0)
        names = conn.execute(text("select indexname from pg_indexes where tablename = 'public.every'")).scalars().all()
    assert event.who == "a tester" and "renamed a of public.latest to x" in event.detail["why"]
    assert not any("by_a" in name for name in names) and len(names) == 4
    assert line.one(NEW) == 4
    assert line.faults(NEW) == []


def test_damage_of_what_was_written_before_a_rename_is_found_after_it(line):
    line.one(OLD)
    line.run("alter table mine rename column a to x")
    migrate(line.ledger.url, [NEW])
    line.one(NEW)
    for table in ('ratchet_delta."public.every"', "mine", 'ratchet_delta."public.latest"'):
        assert line.faults(NEW) == []
        line.run(f"update {table} set x = x + 1 where (_txid, _offset) = (1, 8)")  # noqa: S608
        name = table.rpartition(".")[2].strip('"')
        assert any(fault.startswith(f"{name}: ") and "transaction 1" in fault for fault in line.faults(NEW))
        line.run(f"update {table} set x = x - 1 where (_txid, _offset) = (1, 8)")  # noqa: S608


def test_what_was_called_twice_and_back_is_found_by_what_each_transaction_called_it(line):
    def spec(name: str, was: str = "") -> Pipeline:
        columns = f"{name} bigint, b string"
        renamed = {name: was} if was else {}
        return with_sinks(
            OLD,
            Append("every", columns=columns, renamed=renamed),
            Upsert("latest", key="k string", columns=columns, renamed=renamed),
        )

    line.one(spec("a"))
    for now, was in (("x", "a"), ("y", "x"), ("a", "y"), ("x", "a")):
        migrate(line.ledger.url, [spec(now, was)])
        line.one(spec(now, was))
        assert line.faults(spec(now)) == []
    # A column of the old name is another one from now on.
    both = [
        Append("every", columns="x bigint, b string, a bigint"),
        Upsert("latest", key="k string", columns="x bigint, b string, a bigint"),
    ]
    migrate(line.ledger.url, [with_sinks(OLD, *both)])
    line.one(with_sinks(OLD, *both))
    line.revise(with_sinks(OLD, *both), "run 2")
    assert line.faults(with_sinks(OLD, *both)) == []
    with line.ledger.begin() as conn:
        found = conn.execute(text("select _txid, count(x), count(a) from every group by 1 order by 1")).all()
    assert [tuple(row) for row in found] == [(1, 20, 0), (2, 20, 20), (3, 20, 0), (4, 20, 0), (5, 20, 0), (6, 20, 20)]
    line.run('update ratchet_delta."public.every" set x = 99 where _txid = 3 and _offset = 25')
    assert line.faults(with_sinks(OLD, *both)) == ["every: transaction 3 has other contents than its votes say"]


def test_nothing_is_renamed_under_what_is_unfinished_and_the_ways_on_lead_on(line):
    one = with_sinks(OLD, OLD.sinks[0])
    new = with_sinks(NEW, NEW.sinks[0])
    line.one(one)
    run, begun = line.begun(one)
    said = r"'every': a to x is not renamed while transaction 2 is {}, which .* `ratchet abort line 2 --reason …`"
    with pytest.raises(NotMigrated, match=said.format("OPEN")):
        migrate(line.ledger.url, [new])
    do(line.ledger, one, begun, rows_of(one))
    with pytest.raises(NotMigrated, match=said.format("PREPARED")):
        migrate(line.ledger.url, [new])
    assert line.columns("every")[0] == "a"
    commit(line.ledger, one, begun.claim)
    settle(line.ledger, one, Run("dag", run), succeeded=True)
    # A revision counts as well; given up, it is begun anew with the new names.
    again = start(line.ledger, one, line.log, run, 1)
    do(line.ledger, one, again, rows_of(one))
    with pytest.raises(NotMigrated, match="while revision 1 of transaction 2 is PREPARED"):
        migrate(line.ledger.url, [new])
    abort(line.ledger, new, 2, "to rename", "me")
    migrate(line.ledger.url, [new])
    with pytest.raises(RatchetError, match="is aborted: to rename; the old result stays"):
        commit(line.ledger, one, again.claim)
    settle(line.ledger, one, Run("dag", run, 1), succeeded=False, reason="lost")
    begun = start(line.ledger, new, line.log, "other")
    do(line.ledger, new, begun, rows_of(new))
    commit(line.ledger, new, begun.claim)
    assert line.faults(new) == []


def test_a_run_of_before_that_begins_while_a_column_is_renamed_writes_nothing_and_is_begun_anew(line, monkeypatch):
    old, new = with_sinks(OLD, OLD.sinks[0], OLD.sinks[3]), with_sinks(NEW, NEW.sinks[0], NEW.sinks[3])
    line.one(old)
    migrate(line.ledger.url, [new])
    with monkeypatch.context() as patched:
        # It has looked at the tables before, and is given its transaction afterwards.
        patched.setattr("ratchet.protocol.begin.layout.probe", lambda *_: None)
        run, begun = line.begun(old)
    with pytest.raises(ProgrammingError, match='column "a" of relation .* does not exist'):
        do(line.ledger, old, begun, rows_of(old))
    # Where its records give no rows, nothing fails there.
    do(line.ledger, old, begun, lambda *_: {})
    with pytest.raises(OtherCode, match="its column x is not in the spec"):
        commit(line.ledger, old, begun.claim)
    settle(line.ledger, old, Run("dag", run), succeeded=False, reason="lost")
    assert line.one(new) == begun.claim.txid
    assert line.faults(new) == []


def only(sink: DeclaredSink) -> Pipeline:
    return with_sinks(OLD, sink)


REFUSED = [
    (Append("every", columns="x bigint, b string", renamed={"x": "c"}), "there is no column c to become x"),
    (Append("every", columns="x string, b string", renamed={"x": "a"}), "every.x is BIGINT, the spec declares TEXT"),
    (
        Append("mine", columns="x bigint, b string", existing=True, renamed={"x": "a"}),
        "mine still has a; .* RENAME COLU",
    ),
    (
        Upsert("latest", key="k string", columns="b string", renamed={"b": "a"}),
        "a cannot become b: public.latest has both",
    ),
    (
        Upsert("latest", key="k string", columns="x bigint", renamed={"x": "a"}),
        "its column b is not in the spec, and a key's row would keep it",
    ),
    (
        Accumulate("totals", key="k string, j string", sum="x bigint", max="a bigint", count="n", renamed={"x": "b"}),
        "there is no column b to become x",
    ),
]


def test_a_rename_that_cannot_be_says_why_and_changes_nothing(line):
    line.one(OLD)
    before = [line.columns(each.name) for each in OLD.sinks]
    for sink, said in REFUSED:
        with pytest.raises(NotMigrated, match=said):
            line.foreseen(only(sink))
        with pytest.raises(NotMigrated, match=said):
            migrate(line.ledger.url, [only(sink)])
    assert [line.columns(each.name) for each in OLD.sinks] == before
    assert line.faults(OLD) == []


def test_a_spec_of_before_is_told_what_its_column_is_called_now_and_a_rename_is_taken_back(line):
    one, new = only(OLD.sinks[0]), only(NEW.sinks[0])
    line.one(one)
    migrate(line.ledger.url, [new])
    line.one(new)
    with pytest.raises(NotMigrated, match=r"'every': a of .*every was renamed to x; deploy .*renamed=\{'a': 'x'\}"):
        migrate(line.ledger.url, [one])
    back = only(Append("every", columns="a bigint, b string", renamed={"a": "x"}))
    migrate(line.ledger.url, [back])
    assert line.faults(one) == []
    assert line.columns("every")[0] == "a"


def test_rows_of_a_key_are_erased_by_its_new_name(line):
    one, new = only(OLD.sinks[0]), only(NEW.sinks[0])
    line.one(one)
    migrate(line.ledger.url, [new])
    line.one(new)
    erased = erase(line.ledger, new, "every", {"x": "3"}, "asked for", "me")
    assert set(erased.rows) == {1, 2}
    assert line.faults(new) == []


def test_a_rename_in_a_ledger_whose_tables_are_made_with_it_is_done_already(line, ledger_url):
    fresh = NEW.model_copy(update={"name": "fresh", "sinks": [Append("anew", columns="x bigint", renamed={"x": "a"})]})
    migrate(ledger_url, [fresh])
    line.one(fresh)
    assert lines_of(migrate(ledger_url, [fresh]))[1:] == ["fresh: anew: fits"]
    assert line.faults(fresh) == []


def test_a_view_that_a_person_has_dropped_is_made_anew_with_the_new_name(line):
    one, new = only(OLD.sinks[0]), only(NEW.sinks[0])
    line.one(one)
    line.run("drop view every")
    foreseen = line.foreseen(new)
    assert list(migrate(line.ledger.url, [new]).sinks) == foreseen
    assert line.columns("every")[0] == "x"
    assert line.faults(new) == []
