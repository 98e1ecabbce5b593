"""Upkeep: what keeps a line going and clean when no run does, a step at a time, each safe to repeat."""

from __future__ import annotations

from collections.abc import Iterator

from ratchet.ledger import steps, topic_rows
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import lock_pipeline, read_line, read_transaction
from ratchet.ledger.work import name_of
from ratchet.protocol import claims, membership
from ratchet.protocol.claims import IsActive
from ratchet.protocol.commit import move_on
from ratchet.protocol.compact import compact
from ratchet.protocol.deadlines import abort_overdue
from ratchet.protocol.expire import expire
from ratchet.protocol.follow import Open, follow, nowhere
from ratchet.protocol.leftovers import discard_finished
from ratchet.protocol.plan import reached
from ratchet.source.kafka import Kafka
from ratchet.spec.pipeline import Pipeline


def upkeep(ledger: Ledger, spec: Pipeline, is_active: IsActive, opens: Open = nowhere) -> Iterator[str]:
    """Do what is due in the ledger, and say it in lines.

    1. Abort epochs that are past their deadline.
    2. End the claims of runs that Airflow no longer has.
    3. Have destinations, which `opens` opens, take what they lack.
    4. Move the head over what was voided, where whoever voided it has not come to that.
    5. Discard what is left of finished epochs.
    """
    # Step 1
    with ledger.begin() as conn:
        lock_pipeline(conn, spec.name)
        overdue = abort_overdue(conn, spec.name)
    for row in overdue:
        yield f"{name_of(row.txid, row.revision)} is aborted: {row.reason}"
    # Step 2
    yield from _end_lost(ledger, spec, is_active)
    # Step 3
    with ledger.begin() as conn:
        behind = steps.is_behind(conn, spec.name)
    if behind:
        yield from follow(ledger, spec, opens)
    # Step 4
    moved = move_on(ledger, spec)
    if moved.committed:
        yield f"behind a void, {', '.join(map(str, moved.committed))} are committed"
    # Step 5
    dropped = discard_finished(ledger, spec.name)
    if dropped:
        yield f"{dropped} stages and writers of finished epochs are discarded"


def clean(ledger: Ledger, spec: Pipeline) -> Iterator[str]:
    """Do what can wait longest, which takes rows away, and say it in lines.

    1. Compact deltas that are older than the spec keeps them.
    2. Delete rows that are older than their sink keeps them.
    """
    # Step 1
    compacted = compact(ledger, spec)
    if compacted:
        yield compacted
    # Step 2
    yield from expire(ledger, spec)


def mirror(ledger: Ledger, spec: Pipeline, brokers: Kafka) -> str | None:
    """Show monitoring tools where the ledger stands: as the offsets of consumer group `ratchet-NAME`.

    They are read from the ledger first and written after, so they never run ahead of it.
    """
    with ledger.begin() as conn:
        line = read_line(conn, spec.name)
        if line is None:
            return None
        source, offsets = reached(conn, line)
        topics = topic_rows.of_source(conn, spec.name, source)
    offsets = topics.places(membership.present(offsets, line.topics))
    group, names = f"ratchet-{spec.name}", {topic for topic, _ in offsets}
    if not offsets or any(brokers.ids(names).get(name) != topics.ids[name] for name in names):
        return None
    if brokers.mirrored(group, names) == offsets:
        return None
    brokers.mirror(group, offsets)
    shown = (f"{p if len(line.topics) == 1 else f'{topic}-{p}'}: {at}" for (topic, p), at in sorted(offsets.items()))
    return f"consumer group {group} is at " + ", ".join(shown)


def _end_lost(ledger: Ledger, spec: Pipeline, is_active: IsActive) -> Iterator[str]:
    with ledger.begin() as conn:
        silent = [row for row in claims.unclaimed(conn, spec) if not row.claim_ended]
    # Airflow is asked without a lock; what has been claimed anew meanwhile is left alone.
    for lost in [row for row in silent if not is_active(row.dag_id, row.run_id)]:
        with ledger.begin() as conn:
            row = read_transaction(conn, lost.pipeline, lost.txid, lost.revision, lock=True)
            if row.claim != lost.claim or row.claim_ended:
                continue
            claims.end(conn, spec, row, who="maintenance", why=f"run {row.run_id} was lost")
        yield f"{name_of(lost.txid, lost.revision)}: run {lost.run_id} was lost, its claim is ended"
