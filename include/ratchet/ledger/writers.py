"""Writers: which attempts of Spark tasks have rows in a sink, of transactions that are not committed.

A writer's rows and its row here appear and go in one database transaction, so that the ledger knows without a look at
rows which of them no vote names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from secrets import randbits

from sqlalchemy import Connection, delete, insert, select, update

from ratchet.ledger.rows import Transaction, WriterRow
from ratchet.ledger.schema import writers
from ratchet.ledger.work import Relation, SliceToken, Tag

Spans = Mapping[int, tuple[int, int]]
"""{partition: (first, last offset)} of what a writer has written."""


def register(conn: Connection, token: SliceToken, tag: Tag, sink: str, relation: Relation) -> int:
    """The number of a new writer, which its rows are to carry.

    It is random, and so never given again: a sequence gives a number once more where PostgreSQL was restored to an
    earlier state, or a standby was promoted without the last commits, and a vote of before would name other rows.
    """
    schema, name = relation
    return conn.execute(
        insert(writers)
        .values(
            writer=randbits(63),
            pipeline=token.pipeline,
            txid=token.txid,
            revision=token.revision,
            epoch=token.epoch,
            slice=token.slice,
            try_number=token.try_number,
            nonce=token.nonce,
            task_partition=tag.partition,
            task_attempt=tag.attempt,
            sink=sink,
            schema=schema,
            relation=name,
        )
        .returning(writers.c.writer)
    ).scalar_one()


def note(conn: Connection, writer: int, rows: int, spans: Spans | None) -> None:
    """Say how many rows a writer has written, and which records they are of where that is known."""
    said = None if spans is None else {str(partition): list(span) for partition, span in spans.items()}
    conn.execute(update(writers).where(writers.c.writer == writer).values(rows=rows, spans=said))


def registered(conn: Connection, numbers: Iterable[int]) -> dict[int, WriterRow]:
    """{number: the writer}, of those that there are."""
    found = conn.execute(select(writers).where(writers.c.writer.in_(list(numbers))))
    return {row.writer: row for row in WriterRow.all(found)}


def held(conn: Connection, numbers: Sequence[int]) -> frozenset[int]:
    """Those of these writers that there still are, locked in the order of their numbers."""
    query = select(writers.c.writer).where(writers.c.writer.in_(numbers)).order_by(writers.c.writer).with_for_update()
    return frozenset(conn.execute(query).scalars())


def forget_all(conn: Connection, row: Transaction) -> None:
    """Take the writers of a transaction's revision out of the ledger, since its rows are committed."""
    conn.execute(
        delete(writers).where(
            writers.c.pipeline == row.pipeline, writers.c.txid == row.txid, writers.c.revision == row.revision
        )
    )


def forget(conn: Connection, numbers: Sequence[int]) -> None:
    """Take writers out of the ledger, whose rows are gone."""
    if numbers:
        conn.execute(delete(writers).where(writers.c.writer.in_(numbers)))
