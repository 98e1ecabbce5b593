"""Transforms in SQL: what a slice writes by them, and what is said of a statement that Spark does not take."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from ratchet import Accumulate, Append, Json, Sql, Topic, Upsert
from ratchet.dev.stack import prerequisites
from ratchet.errors import TransformError
from ratchet.operate import release, verify
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote
from ratchet.spark import frame_lane
from ratchet.spark.slice import recompute
from ratchet.spark.trial import failing
from ratchet.spec import functions
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.testing import check
from tests.unit.test_docs import ROOT, section

from .rig import SINK, numbered, positions, spec_of

VALUE = "g int, d decimal(10,2), items array<struct<sku: string, qty: int>>"
SINKS = [
    Append(SINK, columns="g int, d decimal(10,2)"),
    Append("lines", columns="g int, sku string, qty int"),
    Accumulate("totals", key="g int", sum="d decimal(10,2)", count="n"),
    Upsert("latest", key="g int", columns="d decimal(10,2), at timestamp", order="d"),
]
STATEMENTS = Sql(
    rows="select g, cast(d * 2 as decimal(10,2)) as d from records where d >= 0",
    lines="""
        select r.g, item.sku as sku, l.item.qty   -- of each line
        from records r lateral view explode(items) l as item
        where l.item.qty > 0 and d >= 0
    """,
    totals="select * from records where d >= 0",
    latest="select * except (d), d, _txn_time as at from records where g = 1 and d >= 0",
    dead_letters="select concat('below zero: ', d) as error from records where d < 0",
)


def record(number: int) -> dict:
    items = [{"sku": f"s{n}", "qty": n % 3} for n in range(number % 5)]
    amount = Decimal(number * (-1) ** number) + Decimal(number) / 100
    return {"g": number % 3 if number % 7 else None, "d": amount, "items": items}


def sent(rig, *counts: int) -> tuple[str, dict[tuple[int, int], dict]]:
    topic = rig.topic(len(counts))
    for partition, count in enumerate(counts):
        values = [json.dumps(record(n), default=lambda d: f"<{d}>") for n in range(count)]
        rig.send(topic, *(v.replace('"<', "").replace('>"', "").encode() for v in values), b"bad", partition=partition)
    return topic, {(p, n): record(n) for p, count in enumerate(counts) for n in range(count)}


@pytest.mark.invariant("I1")
def test_each_sink_gets_what_its_statement_makes_of_each_record(rig, monkeypatch):
    passes = []
    # The writing of the first sink counts the records: another pass would read them again.
    monkeypatch.setattr(
        frame_lane, "_measures", lambda *given, real=frame_lane._measures: passes.append(1) or real(*given)
    )
    topic, records = sent(rig, 40, 41)
    spec = spec_of(topic, STATEMENTS, VALUE, SINKS)
    (work,) = rig.begin(spec)
    vote = rig.run(spec, work)
    rig.check(spec, work, vote)
    assert len(passes) == 1
    good = {at: r for at, r in records.items() if r["d"] >= 0}
    assert (vote.records, vote.dead_letters) == (83, 83 - len(good))
    assert {(r["_partition"], r["_offset"]): (r["g"], r["d"]) for r in rig.written(work, SINK)} == {
        at: (r["g"], r["d"] * 2) for at, r in good.items()
    }
    wanted = [
        (*at, n, r["g"], item["sku"], item["qty"])
        for at, r in good.items()
        for n, item in enumerate(item for item in r["items"] if item["qty"] > 0)
    ]
    lines = rig.written(work, "lines")
    assert sorted(tuple(r[c] for c in ("_partition", "_offset", "_n", "sku", "qty")) for r in lines) == sorted(
        (p, o, n, sku, qty) for p, o, n, _, sku, qty in wanted
    )
    assert Counter(r["g"] for r in lines) == Counter(g for *_, g, _, _ in wanted) and len(wanted) > 20
    totals: Counter = Counter()
    for row in rig.written(work, "totals"):
        totals[row["g"]] += row["d_sum"]
    assert totals == {g: sum(r["d"] for r in good.values() if r["g"] == g) for g in (None, 0, 1, 2)}
    (latest,) = rig.written(work, "latest")
    last = max((at for at, r in good.items() if r["g"] == 1), key=lambda at: (good[at]["d"], at[1], at[0]))
    assert (latest["d"], latest["at"]) == (good[last]["d"], work.txn_time)
    assert (latest["_partition"], latest["_offset"]) == last
    dead = rig.written(work, DEAD_LETTERS)
    assert positions(dead) == Counter([at for at in records if at not in good] + [(0, 40), (1, 41)])
    assert {r["error"] for r in dead if r["_offset"] == 1} == {"below zero: -0.99"}


@pytest.mark.invariant("I1")
def test_what_is_committed_by_statements_is_what_they_give_again(rig):
    topic, records = sent(rig, 20, 20)
    spec = spec_of(topic, STATEMENTS, VALUE, SINKS, slice_records=25, max_records=1_000)
    works = rig.begin(spec)
    assert len(works) == 2
    for work in works:
        rig.check(spec, work, rig.run(spec, work))
    assert commit(rig.ledger, spec, rig.claim).txids == (1,)
    again = partial(_recomputed, rig, spec)
    found = verify.recompute(rig.ledger, spec, again)
    assert (found.checked, found.faults) == (1, ())
    for change, is_wrong in ((1, True), (-1, False)):
        with rig.ledger.begin() as conn:
            conn.exec_driver_sql('update ratchet_delta."public.latest" set d = d + %s', (change,))
        faults = verify.recompute(rig.ledger, spec, again).faults
        assert ["transaction 1: latest has 1 row with checksum" in fault for fault in faults] == [True] * is_wrong
    # What was given up is tried again by the statements of today, in which less is wrong.
    now = {**STATEMENTS.statements, DEAD_LETTERS: "select 'below ten' as error from records where d < -10"}
    now |= {SINK: "select g, d from records where d >= -10"}
    spec = spec_of(topic, Sql(now), VALUE, SINKS, slice_records=25, max_records=1_000)
    tried = partial(failing, spec, ledger_url=rig.ledger.url, endpoints={}, spark=rig.spark)
    (tried,) = release.trials(rig.ledger, spec, tried, None, None, "below zero")
    below = [at for at, r in records.items() if r["d"] < 0]
    still = [at for at in below if records[at]["d"] < -10]
    assert (tried.letters, tried.again) == (len(below), {"below ten": len(still)})
    release.ask(rig.ledger, spec, None, None, "below zero", "ten is enough", "amy")
    works = rig.begin(spec, "again")
    for work in works:
        cast_vote(rig.ledger, spec, work.token, rig.run(spec, work))
    commit(rig.ledger, spec, rig.claim)
    with rig.ledger.begin() as conn:
        placed = conn.exec_driver_sql("select _partition, _offset from rows").all()
    assert Counter(map(tuple, placed)) == Counter(set(records) - set(still))


def _recomputed(rig, spec, works):
    return recompute(rig.spark, spec, works, rig.servers)


def test_rows_of_arrays_and_of_generators_are_numbered_together(rig):
    topic = rig.topic()
    rig.send(topic, b'[{"a": 2}, {"a": 0}, {"a": 1}]', b'[{"a": 1}]')
    parts = "select explode(sequence(1, a)) as part, a from records where a > 0"
    spec = spec_of(
        topic,
        Sql(rows="select a from records where a < 2", parts=parts),
        sinks=[Append(SINK, columns="a int"), Append("parts", columns="part int, a int")],
    )
    spec = spec.model_copy(update={"source": Topic(topic, value=Json("a int", rows="array"))})
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert sorted((r["_offset"], r["_n"], r["a"]) for r in rig.written(work, SINK)) == [(0, 1, 0), (0, 2, 1), (1, 0, 1)]
    assert sorted((r["_offset"], r["_n"], r["a"], r["part"]) for r in rig.written(work, "parts")) == [
        (0, 0, 2, 1),
        (0, 1, 2, 2),
        (0, 2, 1, 1),
        (1, 0, 1, 1),
    ]


def test_numbers_that_a_statement_gives_are_held_to_what_those_of_a_function_are(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(1, 4)))
    by_place = "select posexplode(sequence(1, a)) as (_n, part), a from records"
    spec = spec_of(topic, Sql(rows=by_place), sinks=[Append(SINK, columns="a int, part int")])
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    assert {(r["_n"], r["part"]) for r in rig.written(work, SINK)} == {(0, 1), (1, 2), (2, 3)}


def test_deletions_go_along_and_may_be_made(rig):
    topic = rig.topic()
    rig.send(topic, *numbered(range(3)), None, keys=[b"0", b"1", b"2", b"1"])
    sinks = [Upsert("kept", key="k int", columns="a int"), Upsert("made", key="k int", columns="a int")]
    spec = spec_of(
        topic,
        Sql(kept="select k, a from records", made="select k, a, _deleted or a = 0 as _deleted from records"),
        value="a int",
        sinks=sinks,
        key="k int",
        tombstones="delete",
    )
    (work,) = rig.begin(spec)
    rig.check(spec, work, rig.run(spec, work))
    kept, made = ({r["k"]: r["_deleted"] for r in rig.written(work, name)} for name in ("kept", "made"))
    assert kept == {0: False, 1: True, 2: False}
    assert made == {0: True, 1: True, 2: False}


def test_the_guide_s_statements_do_what_it_says(session):
    """Its block of code, as it stands there."""
    text = section(ROOT / "docs" / "guide.md", "## Transforms in SQL")
    (block,) = re.findall(r"```python elsewhere\n(.*?)```", text, re.DOTALL)
    made: dict = {}
    exec(block, made)  # noqa: S102 - it is the guide's
    spec = made["PIPELINE"]
    items = [{"sku": "x", "qty": 2}, {"sku": "y", "qty": 1}]
    shown = check(
        spec,
        [{"id": 1, "amount": 1.5, "items": items}, {"id": 2, "items": items}, {"id": 3, "amount": -1}],
        spark=session,
    )
    assert shown["orders"] == [{"id": 1, "amount": 3.0}]
    assert [(row["id"], row["sku"], row["qty"]) for row in shown["lines"]] == [(1, "x", 2), (1, "y", 1)]
    assert [row["_n"] for row in shown.given["lines"]] == [0, 1]
    assert shown.dead_letters == {1: "an order without an amount"}


A, B = "select a, b from records", "statement 'rows', line "
WRONG = [
    ("select a,\n   bb as b from records", f"{B}2, character 4: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
    ("select a, b + + ] as b from records", f"{B}1, character 17: [PARSE_SYNTAX_ERROR] Syntax error at or near"),
    ("select a, b from records where a > ", f"{B}1, character 35: "),
    ("select a, b from records where a = = 1", f"{B}1, character 36: [PARSE_SYNTAX_ERROR]"),
    ("select a, nothing(b) as b from records", f"{B}1, character 11: [UNRESOLVED_ROUTINE]"),
    ("select any(a > 0) as a, b from records", "statement 'rows': [MISSING_GROUP_BY]"),
    (
        "select b as a, b from records",
        "sink 'rows': column 'a' is declared int, and its statement returned string; cast",
    ),
    (
        "select *, 5 as a from records",
        "statement 'rows' returns column 'a' 2 times; leave one out, as `* except (a)` does",
    ),
    ("select *, cast(a as int) from records lateral view explode(b) l as x", f"{B}1, character 52: [DATATYPE_MISMATCH"),
    ("select * except (b) from records", "sink 'rows': column 'b' is declared, and its statement did not return it"),
    ("select a,\n 7 div (a - 1) || '' as b from records", f"{B}2, character 2: [DIVIDE_BY_ZERO]"),
    ("select int(b) as a,\n b from records", f"{B}1, character 8: [CAST_INVALID_INPUT] The value 'one'"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_with_a_statement_is_said_with_its_place_and_nothing_is_written(rig, text, said):
    topic = rig.topic()
    rig.send(topic, b'{"a": 1, "b": "one"}')
    with pytest.raises(Exception) as raised:
        spec = spec_of(
            topic, Sql(first=A, rows=text), sinks=[Append(n, columns="a int, b string") for n in ("first", SINK)]
        )
        (work,) = rig.begin(spec)
        rig.run(spec, work)
    assert said in str(raised.value)
    if isinstance(raised.value, TransformError) and "DIVIDE" not in said and "CAST" not in said:
        # Spark looks at all statements before it writes the first sink.
        assert not rig.written(work, "first")


@pytest.mark.all
def test_the_lists_of_functions_are_those_of_spark():
    """In a session of another process, which is none of Connect."""
    said = run_classic("functions.py")
    groups = said["groups"]
    assert set(groups["functions agg_funcs"]) - {"any", "some"} <= functions.AGGREGATES
    assert set(groups["functions window_funcs"]) == functions.WINDOWS
    generators = {*groups["functions generator_funcs"], *groups["tables generator_funcs"]}
    assert generators <= functions.GENERATORS
    known = {*functions.AGGREGATES, *functions.CHANCE}
    assert set(said["random"]) <= known and "rand" in said["random"]
    # None of them is a word that Spark does not know, but those that it knows without parentheses alone.
    every = {name for names in groups.values() for name in names}
    refused = (
        known | functions.WINDOWS | functions.GENERATORS | functions.CLOCKS | functions.PLACES | functions.SESSIONS
    )
    refused |= functions.OUTSIDE | functions.TIME_WINDOWS | functions.FEWEST.keys()
    assert refused - every == {"localtime"}


def run_classic(script: str) -> dict:
    env = {
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": str(prerequisites.java().parent.parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    file = Path(__file__).parent / script
    done = subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
