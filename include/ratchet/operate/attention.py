"""What needs attention: by a few queries over many lines, which of them there is anything to do for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select, text

from ratchet.ledger.rows import Line
from ratchet.ledger.schema import heads, pipelines
from ratchet.ledger.states import UNFINISHED
from ratchet.protocol import due
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline

# Whoever commits has the row locked; where nobody comes for as long as that takes, nothing is amiss.
_BEEN_HERE = text("""
    with mine as (
        select pipeline from ratchet.pipelines where pipeline = any(:names) order by pipeline
        for no key update skip locked
    )
    update ratchet.pipelines p set maintained_at = clock_timestamp() from mine where p.pipeline = mine.pipeline
""")
_DUE = text("""
    select p.pipeline
    from unnest(cast(:names as text[]), cast(:leases as float8[]), cast(:keeps as float8[]))
        as asked (pipeline, lease, keep)
    join ratchet.pipelines p using (pipeline)
    join ratchet.heads h using (pipeline)
    where exists (
        select from ratchet.transactions t
        where t.pipeline = p.pipeline and t.state = any(:unfinished) and (
            t.state = 'OPEN' and t.deadline < clock_timestamp()
            or t.revision = 0 and t.halted_at is not null
            or t.halted_at is null
            and (
                t.claim_ended
                or t.lease_until < clock_timestamp()
                or t.lease_until > clock_timestamp() + make_interval(secs => asked.lease)
            )
            and not exists (
                select from ratchet.transactions newer
                where newer.pipeline = t.pipeline and newer.txid = t.txid and newer.revision > t.revision
            )
        )
    )
    or exists (
        select from ratchet.transactions t
        where t.pipeline = p.pipeline and t.txid = h.txid + 1 and t.revision = 0 and t.state = 'VOIDED'
    )
    or exists (select from ratchet.replays r where r.pipeline = p.pipeline and r.given_up is null)
    or exists (select from ratchet.stages s where s.pipeline = p.pipeline)
    or exists (
        select from ratchet.destinations d
        where d.pipeline = p.pipeline and d.detached_at is null and d.step < p.step
    )
    or exists (
        select from ratchet.writers w join ratchet.transactions t using (pipeline, txid, revision)
        where w.pipeline = p.pipeline and (w.epoch < t.epoch or t.state in ('ABORTED', 'VOIDED', 'COMMITTED'))
    )
    or asked.keep is not null and (
        p.merged < p.compacted
        or exists (
            select from ratchet.transactions t
            where t.pipeline = p.pipeline and t.txid = p.compacted + 1 and t.txid <= h.txid and t.revision = 0
            and coalesce(t.committed_at, t.opened_at) <= clock_timestamp() - make_interval(secs => asked.keep)
        )
    )
""")
_OLD = text("""
    select asked.pipeline
    from unnest(cast(:names as text[]), cast(:schemas as text[]), cast(:tables as text[]), cast(:ages as float8[]))
        as asked (pipeline, schema, name, age)
    join ratchet.heads h using (pipeline)
    cross join lateral (
        select coalesce(max(e.until_txid), 0) as txid from ratchet.expired e
        where e.pipeline = asked.pipeline and e.schema = asked.schema and e.name = asked.name
    ) gone
    cross join lateral (
        select coalesce(t.committed_at, t.opened_at) as at from ratchet.transactions t
        where t.pipeline = asked.pipeline and t.txid > gone.txid and t.txid <= h.txid and t.revision = 0
        order by t.txid limit 1
    ) next
    where next.at <= clock_timestamp() - make_interval(secs => asked.age)
""")
# Each partition that was ever planned has a row of txid 0; the others are found by the end of its chain.
_ENDS = text("""
    select p.pipeline, f.partition,
        (
            select r.until_offset from ratchet.ranges r
            where r.pipeline = f.pipeline and r.source = f.source and r.partition = f.partition
            order by r.until_offset desc limit 1
        ) as planned,
        (
            select r.until_offset from ratchet.ranges r
            where r.pipeline = f.pipeline and r.source = f.source and r.partition = f.partition and r.txid <= h.txid
            order by r.until_offset desc limit 1
        ) as reached,
        exists (
            select from ratchet.sources s
            where s.pipeline = p.pipeline
            and (s.source > p.source or s.source = p.source and s.first_txid > h.txid + 1)
        ) as is_between
    from ratchet.pipelines p
    join ratchet.heads h using (pipeline)
    join ratchet.ranges f on f.pipeline = p.pipeline and f.source = p.source and f.txid = 0
    where p.pipeline = any(:names)
""")


@dataclass(frozen=True)
class Standing:
    """Where a line stands, and of each partition of its newest source up to where it is planned, and is committed."""

    line: Line
    planned: dict[int, int]
    reached: dict[int, int]
    is_between: bool = False
    """Whether another source waits, or the head is in the one before: then only the line's own plans tell the rest."""


def may_want_records(spec: Pipeline, standing: Standing | None) -> bool:
    """Whether Kafka has to be asked if records wait that a run could take; `standing` is None before the first run.

    Where records start runs, the triggerer looks for them.
    """
    if not due.is_asked_for(spec) or standing is None or not standing.line.has_room(spec.max_in_flight):
        return False
    asked = standing.line.due or {}
    return standing.is_between or any(at > standing.planned.get(int(p), 0) for p, at in asked.items())


def may_have_records(standing: Standing, stable: Mapping[int, int]) -> bool:
    """Whether records that are due may wait below these last stable offsets of its topic."""
    due = standing.line.due or {}
    return standing.is_between or any(
        min(at, due.get(str(p), 0)) > standing.planned.get(p, 0) for p, at in stable.items()
    )


def been_here(conn: Connection, names: Collection[str]) -> None:
    """Note that the maintenance was here."""
    conn.execute(_BEEN_HERE, {"names": sorted(names)})


def in_need(conn: Connection, specs: Sequence[Pipeline]) -> set[str]:
    """The pipelines that `upkeep` or `clean` finds something to do for, or that are halted; and perhaps others."""
    asked: dict[str, Any] = {
        "names": [spec.name for spec in specs],
        "leases": [spec.lease_seconds for spec in specs],
        "keeps": [spec.keep_deltas.total_seconds() if is_compacted(spec) else None for spec in specs],
        "unfinished": list(UNFINISHED),
    }
    return {*conn.execute(_DUE, asked).scalars(), *_with_old_rows(conn, specs)}


def _with_old_rows(conn: Connection, specs: Sequence[Pipeline]) -> Iterable[str]:
    """Those that have a sink with rows that are older than it keeps them."""
    keeping = [
        (spec.name, *sink.table, age) for spec in specs for sink in sinks_of(spec) if (age := sink.expires_after)
    ]
    if not keeping:
        return []
    names, schemas, tables, ages = zip(*keeping, strict=True)
    seconds = [age.total_seconds() for age in ages]
    return conn.execute(
        _OLD, {"names": [*names], "schemas": [*schemas], "tables": [*tables], "ages": seconds}
    ).scalars()


def is_compacted(spec: Pipeline) -> bool:
    """Whether any sink has deltas that are merged in the end."""
    return any(sink.is_compacted for sink in sinks_of(spec))


def standings(conn: Connection, names: Collection[str]) -> dict[str, Standing]:
    """{pipeline: where its line stands}, of those that have one."""
    query = select(pipelines, heads.c.txid.label("head")).join(heads, heads.c.pipeline == pipelines.c.pipeline)
    lines = Line.all(conn.execute(query.where(pipelines.c.pipeline.in_(list(names)))))
    found = {line.pipeline: Standing(line, {}, {}) for line in lines}
    for pipeline, partition, planned, reached, is_between in conn.execute(_ENDS, {"names": list(names)}):
        if pipeline not in found:
            # Its first run has begun meanwhile.
            continue
        if is_between != found[pipeline].is_between:
            found[pipeline] = replace(found[pipeline], is_between=is_between)
        found[pipeline].planned[partition] = planned
        found[pipeline].reached[partition] = reached
    return found
