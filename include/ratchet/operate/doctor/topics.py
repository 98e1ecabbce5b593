"""Checks of Kafka and of each pipeline's topic: there, the same one, every record there, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial

from ratchet.errors import RecordsLost, TombstonesLost, TopicChanged
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line
from ratchet.ledger.topics import titled
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import counted
from ratchet.operate.doctor.finding import Check, Finding, Severity, fault, ok, warning
from ratchet.operate.snapshot.lag import lags, topics_asked
from ratchet.protocol import membership, tombstones
from ratchet.protocol.plan import check_readable, course_of
from ratchet.protocol.sources import lineages
from ratchet.source.kafka import Kafka
from ratchet.source.offsets import KnownLogs
from ratchet.source.topics import Topics
from ratchet.spec.pipeline import Pipeline

NEEDED = (2, 8)
"""The first version of Kafka that gives topics ids."""
ENOUGH = 0.25
"""Of its retention a record should have so much left when it is read."""


def checks(kafka: Mapping[str, str], ledger: Ledger | None, specs: Iterable[Pipeline]) -> Iterator[Check]:
    """Those of the brokers, and of every pipeline's topic; without a ledger only what Kafka alone tells."""
    yield Check("kafka", partial(_brokers, kafka))
    needs = frozenset({"kafka"})
    yield Check("kafka-version", partial(_versions, kafka), needs=needs)
    for spec in specs:
        yield Check("topic", partial(_topic, kafka, spec), spec.name, needs)
        if ledger:
            both = needs | {"ledger", "ledger-schema"}
            yield Check("topic-id", partial(_topic_id, kafka, ledger, spec), spec.name, both)
            yield Check("records", partial(_records, kafka, ledger, spec), spec.name, both)
            yield Check("retention", partial(_retention, kafka, ledger, spec), spec.name, both)


def _brokers(kafka: Mapping[str, str]) -> Iterator[Finding]:
    with Kafka(dict(kafka)) as client:
        _ = client.admin
        yield ok("kafka", f"Kafka at {client.servers} answers")


def _versions(kafka: Mapping[str, str]) -> Iterator[Finding]:
    with Kafka(dict(kafka)) as client:
        found = client.versions()
    yield from judged_versions(found)


def judged_versions(found: Mapping[int, tuple[int, ...]]) -> Iterator[Finding]:
    """Of {broker: the version of Kafka that its protocol shows, in which bug-fix releases are alike}."""
    old = {node: held for node, held in sorted(found.items()) if held < NEEDED}
    for node, held in old.items():
        said = f"broker {node} speaks as Kafka {_dotted(held)}, which gives topics no ids"
        yield fault("kafka-version", said, f"Upgrade the brokers to {_dotted(NEEDED)} or later.")
    if not old:
        spoken = " and ".join(_dotted(held) for held in sorted(set(found.values())))
        yield ok("kafka-version", f"of {len(found)} brokers each speaks as Kafka {spoken}, or later")


def _dotted(of: tuple[int, ...]) -> str:
    return ".".join(map(str, of))


def _topic(kafka: Mapping[str, str], spec: Pipeline) -> Iterator[Finding]:
    with Kafka(dict(kafka)) as client:
        offsets = client.offsets(spec.source)
    has, may = ("has", "may") if len(offsets.topics) == 1 else ("have", "may each")
    yield ok("topic", f"{offsets.title} {has} {counted(len(offsets.stable), 'partition')} and {may} be read")
    hangs = offsets.held_back(only_hanging=True)
    if hangs:
        yield warning("topic", hangs, "End that transaction if its producer is gone.")


def _topic_id(kafka: Mapping[str, str], ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    line = _line(ledger, spec)
    with Kafka(dict(kafka)) as client:
        told = client.topics(spec.source, line.topics if line else None)
    if line is None:
        yield ok("topic-id", "the line has not begun")
        return
    try:
        membership.check(spec, line.topics, told)
    except TopicChanged as error:
        remedy = "Give the pipeline a new name, and its sinks new tables, to begin anew with this topic."
        if any(spec.source.wants(each.name) for each in line.topics):
            remedy = f"`ratchet accept-loss {spec.name} --dry-run --reason …` says what going on would mean."
        yield Finding("topic-id", Severity.FAULT, str(error), remedy, error=error.code)
        return
    new = sorted(membership.added(line.topics, told))
    joins = f"; {titled([told.names[n] for n in new])} joins with the next run" if new else ""
    are = "is the one" if len(line.topics) == 1 else "are the ones"
    yield ok("topic-id", f"{line.topics.title} {are} that the ledger's ranges are of{joins}")


def _records(kafka: Mapping[str, str], ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    line = _line(ledger, spec)
    if line is None:
        yield ok("records", "the line has not begun")
        return
    with ledger.snapshot() as conn:
        # Before Kafka is asked: what is planned meanwhile is beyond it, and not lost.
        course, known = course_of(conn, line), lineages(conn, spec.name, line.source)
    asked_at = tombstones.now(ledger, spec)
    with Kafka(dict(kafka)) as client:
        offsets = client.offsets(spec.source, known=KnownLogs(line.topics, known))
    if membership.made_again(line.topics, offsets) or membership.gone(spec, line.topics, offsets):
        yield warning("records", "not checked, since a topic is another one", "See topic-id.")
        return
    try:
        check_readable(spec.name, course, offsets)
        if spec.source.compacted:
            with ledger.snapshot() as conn:
                why = tombstones.missing(conn, line, tombstones.look(asked_at, offsets), course)
            if why:
                raise TombstonesLost(f"{spec.name}: {why}")
    except (RecordsLost, TopicChanged) as error:
        remedy = f"`ratchet explain {error.code}` says what to do."
        yield Finding("records", Severity.FAULT, str(error), remedy, error=error.code)
        return
    yield ok("records", "Kafka has every record that the next plan starts with")


def _retention(kafka: Mapping[str, str], ledger: Ledger, spec: Pipeline) -> Iterator[Finding]:
    """Of the records that are not committed: until then they may have to be read once more."""
    with ledger.snapshot() as conn:
        names = topics_asked(conn, [spec])
    with Topics(dict(kafka)) as brokers, ledger.snapshot() as conn:
        ends = brokers.ends(names)
        found = lags(conn, [spec.name], ends, brokers.times).get(spec.name)
    if found is None:
        yield ok("retention", "the line has not begun")
        return
    if found.is_made_again or not found.is_told:
        yield warning("retention", "not foretold, since a topic is another one or is not there", "See topic-id.")
        return
    if all(each.retention_ms is None and each.retention_bytes is None for each in ends.values()):
        yield ok("retention", "Kafka keeps records without a limit")
        return
    if not found.partitions:
        yield ok("retention", "no record is unread")
        return
    told = [(part.deleted_at, part) for part in found.partitions if part.deleted_at]
    if not told:
        yield warning("retention", "not foretold: Kafka has not said how old records are", "Examine it again.")
        return
    deleted_at, first = min(told, key=lambda each: each[0])
    left, kept = deleted_at - found.at, deleted_at - (first.oldest_at or found.at)
    place = f"{first.topic}-{first.partition}"
    where = f"{counted(found.records, 'offset is', 'offsets are')} not committed; the oldest of {place}"
    remedy = "Let more runs begin, or lengthen the topic's retention.ms."
    if left <= timedelta(0):
        yield fault("retention", f"{where} is older than it is kept: Kafka may delete it at any moment", remedy)
    elif left < kept * ENOUGH:
        yield warning("retention", f"{where} may be deleted in {_span(left)}", remedy)
    else:
        yield ok("retention", f"{where} stays for {_span(left)} at least")


def _line(ledger: Ledger, spec: Pipeline) -> Line | None:
    with ledger.snapshot() as conn:
        return read_line(conn, spec.name)


def _span(left: timedelta) -> str:
    """A time as people say it, in its two largest units."""
    minutes = int(left.total_seconds() // 60)
    days, hours = divmod(minutes // 60, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes % 60} min"
