"""`ratchet.testing`: records through the real decoder and a transform, and what its checks find."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec import msgpack

from ratchet import (
    Accumulate,
    Append,
    Bytes,
    CloudEvents,
    Csv,
    Json,
    MessagePack,
    Pipeline,
    Refused,
    Text,
    Topic,
    Upsert,
)
from ratchet.errors import TransformError
from ratchet.testing import TIME, Record, check, run

COLUMNS = "id bigint not null, customer string, amount decimal(12,2)"


def spec_of(transform=None, source: Topic | None = None, sinks=None, **given) -> Pipeline:
    return Pipeline(
        name="orders",
        source=source or Topic("orders", value=Json(COLUMNS)),
        transform=transform and f"{transform.__module__}:{transform.__name__}",
        sinks=sinks or [Append("orders", columns=COLUMNS)],
        **given,
    )


def order(number: int, **said) -> dict:
    return {"id": number, "customer": "ada", "amount": Decimal("1.50"), **said}


def test_each_sink_shows_what_its_readers_would_see():
    sinks = [
        Append("orders", columns=COLUMNS),
        Accumulate("turnover", key="customer string", sum="amount decimal(12,2)", count="n"),
        Upsert("latest", key="customer string", columns="amount decimal(12,2), id bigint", order="id"),
    ]
    given = [order(2), order(1, customer="bob"), order(3, amount=2), order(9, customer=None, amount=None)]
    made = check(spec_of(sinks=sinks), given)
    assert [row["id"] for row in made["orders"]] == [2, 1, 3, 9]
    assert made["turnover"] == [
        {"customer": "ada", "amount_sum": Decimal("3.50"), "n": 2},
        {"customer": "bob", "amount_sum": Decimal("1.50"), "n": 1},
        {"customer": None, "amount_sum": None, "n": 1},
    ]
    assert [(row["customer"], row["id"]) for row in made["latest"]] == [("ada", 3), ("bob", 1), (None, 9)]
    assert [(row["_offset"], row["id"]) for row in made.given["latest"]] == [(0, 2), (1, 1), (2, 3), (3, 9)]
    assert made.dead_letters == {}


EVENT = {"ce_specversion": "1.0", "ce_id": "e1", "ce_source": "/s", "ce_type": "t"}


@pytest.mark.parametrize(
    ("value", "given", "rows", "dead"),
    [
        (Text("degrees double"), ["21.5", "warm"], [(21.5,)], "column degrees: found warm, wanted double"),
        (Bytes("payload binary"), [b"\xff", None], [(b"\xff",)], "no value (a tombstone)"),
        (Csv("id int, name string"), ['7,"a, b"', "8"], [(7, "a, b")], "the value: found 1 field, wanted 2"),
        (
            MessagePack("id int, name string"),
            [msgpack.encode({"id": 7}), b"\x91"],
            [(7, None)],
            "the value: found 1 bytes that are none (Input data was truncated), wanted one MessagePack map",
        ),
        (
            CloudEvents("event string from id", data=Json("id int")),
            [Record({"id": 7}, headers=EVENT), Record({"id": 8}, headers={**EVENT, "ce_id": None})],
            [("e1", 7)],
            "the value: found no header ce_id, wanted the id, source, specversion and type of a CloudEvent",
        ),
    ],
)
def test_records_of_every_format_are_given_as_they_are_sent(value, given, rows, dead):
    columns = ", ".join(f"{column.name} {column.type}" for column in value.fields)
    made = check(spec_of(source=Topic("t", value=value), sinks=[Append("rows", columns=columns)]), given)
    assert [tuple(row.values()) for row in made["rows"]] == rows
    assert made.dead_letters == {1: dead}


def test_records_are_decoded_as_a_job_decodes_them():
    given = [b'{"id": 1', '{"id": 2, "amount": 1.005}', order(3, amount="x"), None, {"customer": "ada"}, order(6)]
    made = run(spec_of(), given)
    assert [row["id"] for row in made["orders"]] == [6]
    assert {number: said[:28] for number, said in made.dead_letters.items()} == {
        0: 'the value: found {"id": 1, w',
        1: "column amount: found 1.005, ",
        2: 'column amount: found "x", wa',
        3: "no value (a tombstone)",
        4: "column id: found nothing, wa",
    }


def test_a_record_may_have_a_key_headers_and_a_time_of_its_own():
    columns = "at timestamp from _timestamp, trace string from _headers.trace, amount int"
    source = Topic("t", key=Json("tenant string, id int"), value=Json(columns))
    sinks = [Append("seen", columns="tenant string, id int, at timestamp, trace string, amount int")]
    later = TIME + timedelta(hours=1)
    given = [
        Record({"amount": 1}, key={"tenant": "a", "id": 7}, headers={"trace": "x", "more": None}, timestamp=later),
        Record({"amount": 2}, key=b'{"tenant": "b"}'),
        Record({"amount": 3}, key="no JSON"),
    ]
    made = check(spec_of(source=source, sinks=sinks), given)
    assert made["seen"] == [
        {"tenant": "a", "id": 7, "at": later, "trace": "x", "amount": 1},
        {"tenant": "b", "id": None, "at": TIME, "trace": None, "amount": 2},
    ]
    assert list(made.dead_letters) == [2]


def test_a_tombstone_deletes_its_key_and_values_of_an_array_are_several_rows():
    source = Topic("t", key="id int", value=Json("a int", rows="array"), tombstones="delete")
    spec = spec_of(source=source, sinks=[Upsert("last", key="id int", columns="a int")])
    given = [Record([{"a": 1}, {"a": 2}], key=1), Record([{"a": 3}], key=2), Record(None, key=2), Record([], key=3)]
    made = check(spec, given)
    assert made["last"] == [{"id": 1, "a": 2}]
    assert [(row["_offset"], row["_n"], row["_deleted"]) for row in made.given["last"]] == [
        (0, 0, False),
        (0, 1, False),
        (1, 0, False),
        (2, 0, True),
    ]


def test_documents_are_read_in_their_parts():
    columns = "id int, more json, tags map<string, int>, at array<timestamp>"
    spec = spec_of(source=Topic("t", value=Json(columns)), sinks=[Append("rows", columns=columns)])
    (row,) = run(spec, [{"id": 1, "more": {"x": [1.5]}, "tags": {"a": 1}, "at": [TIME]}])["rows"]
    assert row == {"id": 1, "more": {"x": [Decimal("1.5")]}, "tags": {"a": 1}, "at": ["2024-01-01T00:00:00+00:00"]}


def valid_then(orders: pa.Table) -> dict[str, pa.Table]:
    """Prices that hold from a time on, as of the transaction's."""
    price = 2 if orders.column("_txn_time")[0].as_py() >= datetime(2025, 1, 1, tzinfo=UTC) else 1
    at = orders.schema.get_field_index("amount")
    return {"orders": orders.set_column(at, "amount", pa.array([Decimal(price)] * len(orders), pa.decimal128(12, 2)))}


def test_a_transform_is_given_the_time_of_its_transaction():
    seen = [check(spec_of(valid_then), [order(1)], txn_time=TIME.replace(year=y))["orders"] for y in (2024, 2025)]
    assert [row["amount"] for (row,) in seen] == [1, 2]


def gives_up(orders: pa.Table) -> dict[str, pa.Table]:
    bad = pc.less(orders.column("amount"), 0)
    said = pa.array(["below zero"] * len(orders))
    return {"orders": orders.filter(pc.invert(bad)), "dead_letters": orders.append_column("error", said).filter(bad)}


def test_what_a_transform_gives_up_is_a_dead_letter_with_its_reason():
    made = check(spec_of(gives_up), [b"{", order(1), order(2, amount=-1)])
    assert [row["id"] for row in made["orders"]] == [1]
    assert made.dead_letters[2] == "below zero" and sorted(made.dead_letters) == [0, 2]


def refuses(orders: pa.Table) -> dict[str, pa.Table]:
    raise Refused("not today")


def test_run_raises_what_a_job_would():
    with pytest.raises(Refused, match="not today"):
        run(spec_of(refuses), [order(1)])
    with pytest.raises(TransformError, match="sink 'orders': column id is declared not null and is null"):
        run(spec_of(source=Topic("t", value=Json(COLUMNS.replace(" not null", "")))), [order(1, id=None)])


def counts(orders: pa.Table) -> dict[str, pa.Table]:
    at = orders.schema.get_field_index("amount")
    size = pa.array([Decimal(len(orders))] * len(orders), pa.decimal128(12, 2))
    return {"orders": orders.set_column(at, "amount", size)}


def first_of_each(orders: pa.Table) -> dict[str, pa.Table]:
    seen: set = set()
    kept = [not (name in seen or seen.add(name)) for name in orders.column("customer").to_pylist()]
    return {"orders": orders.filter(pa.array(kept))}


RANDOM = Random(7)


def by_chance(orders: pa.Table) -> dict[str, pa.Table]:
    at = orders.schema.get_field_index("amount")
    drawn = pa.array([Decimal(RANDOM.randrange(10**9)) for _ in range(len(orders))], pa.decimal128(12, 2))
    return {"orders": orders.set_column(at, "amount", drawn)}


def doubles(orders: pa.Table) -> dict[str, pa.Table]:
    return {"orders": pa.concat_tables([orders, orders.slice(1, 1)])}


def raises_at_three(orders: pa.Table) -> dict[str, pa.Table]:
    if 3 in orders.column("id").to_pylist():
        raise ValueError("three")
    return {"orders": orders}


def needs_company(orders: pa.Table) -> dict[str, pa.Table]:
    if len(orders) < 3:
        raise ValueError("too few")
    return {"orders": orders}


def needs_solitude(orders: pa.Table) -> dict[str, pa.Table]:
    if len(orders) > 3:
        raise ValueError("too many")
    return {"orders": orders}


def gives_up_twice(orders: pa.Table) -> dict[str, pa.Table]:
    return {"orders": orders.slice(0, 0), "dead_letters": pa.concat_tables([orders, orders])}


def of_other_type(orders: pa.Table) -> dict[str, pa.Table]:
    return {"orders": orders.set_column(0, "id", orders.column("id").cast(pa.string()))}


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (counts, r"record 0 .*: beside all others it gives .*'4.00'.*, and beside every second one .*'2.00'"),
        (first_of_each, r"record 1 .*\"id\":2.*: beside all others it gives no row, and beside every second one "),
        (by_chance, r"record 0 .*: the first time it gives .*, and the second time "),
        (doubles, r"record 1 .*: it has 2 rows whose _partition, _offset, _n are 0, 1, 0; number the rows"),
        (raises_at_three, r"record 2 .*\"id\":3.*: orders: .*raises_at_three raised ValueError: three"),
        (needs_company, r"slice of fewer records: beside all others it raises nothing, and beside every second one: "),
        (needs_solitude, r"all records together, and none of them alone: .*too many"),
        (gives_up_twice, r"record 0 .*: it has 2 rows whose _partition, _offset are 0, 0; a record is one dead letter"),
        (of_other_type, r"record 0 .*: column 'id' is declared bigint, and .* returned string"),
    ],
)
def test_a_check_names_the_record_that_shows_what_is_wrong(transform, said):
    with pytest.raises(AssertionError, match=said):
        check(spec_of(transform), [order(n) for n in (1, 2, 3, 4)])


def only_one_of_two(orders: pa.Table) -> dict[str, pa.Table]:
    """Wrong for exactly two records in a batch, and right for one, and for all."""
    return {"orders": orders.slice(0, 1) if len(orders) == 2 else orders}


def test_other_cuts_are_tried_than_single_records():
    with pytest.raises(AssertionError, match="record 2 .*, and beside every second one no row"):
        check(spec_of(only_one_of_two), [order(n) for n in (1, 2, 3, 4)])


def test_nothing_of_spark_is_loaded_for_a_transform_without_dataframes():
    program = "import sys, ratchet.testing; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
