"""What a dry run of a replay says, beside tables that are not as ratchet would have made them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlalchemy import text

from ratchet import Append, Json, Pipeline, Topic
from ratchet.operate.difference import differences
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.sinks.binary import COPY_ENDS, encoder_of, wire_batch
from ratchet.sinks.lookup import sink_of
from ratchet.values.arrow import arrow_type

from .staging import do, positions_of, start

OWN = Pipeline(
    name="owned",
    source=Topic("t", value=Json("b string, c array<string>")),
    transform="tests.ledger.staging:rows_of",
    sinks=[Append("mine", columns="b string, c array<string>", existing=True)],
    max_records=8,
)


@pytest.mark.parametrize("collation", ["default", "C", "POSIX", "ucs_basic"])
def test_texts_of_a_table_of_ones_own_are_compared_whatever_their_collation(ledger, log, collation):
    with ledger.begin() as conn:
        conn.execute(
            text(
                f'create table mine (b text collate "{collation}", c text[] collate "{collation}", '
                "_topic text not null, _partition int not null, _offset bigint not null, _n int not null, "
                "_txid bigint not null)"
            )
        )
    migrate(ledger.url, [OWN])
    begun = start(ledger, OWN, log, "a")
    do(ledger, OWN, begun, lambda p, o: {"mine": [{"b": f"ä{o}", "c": [None, f"{p}"]}]})
    commit(ledger, OWN, begun.claim)
    sink = sink_of(OWN, "mine")

    def again(works, take) -> None:
        at = positions_of(begun)
        cells = {
            "b": ["other" if o == 2 else f"ä{o}" for _, o in at],
            "c": [[None, f"{p}"] for p, _ in at],
            "_partition": [p for p, _ in at],
            "_offset": [o for _, o in at],
            "_n": [0 for _ in at],
        }
        batch = pa.RecordBatch.from_pydict({c.name: pa.array(cells[c.name], arrow_type(c.type)) for c in sink.written})
        batch = wire_batch(batch, sink.written)
        encoder = encoder_of(batch.schema, sink.written)
        encoder.write_header()
        take(sink, iter([bytes(encoder.write_batch(batch)), encoder.finish().removesuffix(COPY_ENDS)]))

    (found,) = differences(ledger, OWN, again, 1, 1)
    (of,) = [of for of in found.sinks if of.sink == "mine"]
    assert (of.added, of.removed, of.changed, of.before, of.after) == (0, 0, 2, 8, 8)
    assert {(e.named["_partition"], e.columns["b"]) for e in of.examples} == {(p, ("ä2", "other")) for p in (0, 1)}
