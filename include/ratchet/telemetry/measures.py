"""What is measured of each line: name, unit, meaning, and where in the snapshot its value stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from ratchet.ledger.states import State
from ratchet.operate.snapshot.lag import Lag
from ratchet.operate.snapshot.status import Status

PIPELINE, STATE, SERVER, DESTINATION = "pipeline", "state", "server", "destination"


@dataclass(frozen=True)
class Measure:
    """A name by OpenTelemetry's rules, its unit, what it means, and by which labels its values are told apart."""

    name: str
    unit: str
    meaning: str
    labels: tuple[str, ...] = (PIPELINE,)

    @property
    def prometheus(self) -> str:
        """The name that Prometheus has for it: units in braces are remarks, and no part of it."""
        name = self.name.replace(".", "_")
        return f"{name}_seconds" if self.unit == "s" else name


@dataclass(frozen=True)
class Point:
    """A value of a measure, and its labels."""

    measure: str
    labels: Mapping[str, str]
    value: float


HEAD = Measure("ratchet.head", "{transaction}", "txid of the last transaction that readers see")
LAST = Measure("ratchet.last", "{transaction}", "txid of the newest transaction that was planned")
IN_FLIGHT = Measure(
    "ratchet.in_flight", "{transaction}", "unfinished transactions and revisions in this state", (PIPELINE, STATE)
)
HALTED = Measure("ratchet.halted", "{line}", "1 where the line is halted at a transaction, else 0")
PAUSED = Measure("ratchet.paused", "s", "since a person has paused the line behind a transaction; 0 where nobody has")
FAILURES = Measure("ratchet.failures", "{failure}", "most failures that an unfinished transaction has had")
OLDEST = Measure(
    "ratchet.oldest_unfinished",
    "s",
    "since the oldest unfinished transaction was begun that is not beyond a pause; 0 without one",
)
COMMITTED = Measure("ratchet.since_commit", "s", "since the last commit; none before the first one")
MAINTAINED = Measure("ratchet.since_maintenance", "s", "since maintenance was here; none where it never was")
REPLAYS = Measure("ratchet.replays_waiting", "{revision}", "revisions that are asked for and not begun")
GIVEN_UP = Measure("ratchet.replays_given_up", "{revision}", "revisions that were asked for and cannot be begun")
LACKS = Measure(
    "ratchet.destination.lacks",
    "{step}",
    "commits that a destination has not got",
    (PIPELINE, DESTINATION),
)
BEHIND = Measure(
    "ratchet.destination.behind",
    "s",
    "since it gets nothing although it lacks a commit; 0 where it has all, or is detached",
    (PIPELINE, DESTINATION),
)
DETACHED = Measure(
    "ratchet.destination.detached",
    "s",
    "since a person has detached a destination; 0 where it is attached",
    (PIPELINE, DESTINATION),
)
RECENT_TRANSACTIONS = Measure(
    "ratchet.recent.transactions", "{transaction}", "transactions committed in the last 10 minutes, 100 at most"
)
RECENT_RECORDS = Measure("ratchet.recent.records", "{record}", "records that those have read")
RECENT_LETTERS = Measure("ratchet.recent.dead_letters", "{record}", "dead letters among those records")
LAG_RECORDS = Measure("ratchet.lag.records", "{record}", "offsets in Kafka that are not committed here")
WAITING = Measure("ratchet.lag.waiting", "{record}", "of these, offsets that no transaction has planned")
LAG_SECONDS = Measure("ratchet.lag.age", "s", "age of the oldest record that is not committed; 0 without one")
LOST = Measure("ratchet.lost", "{record}", "offsets that Kafka has deleted before a transaction took them")
LEFT = Measure(
    "ratchet.retention_left", "s", "until retention may delete a record that is not committed; none where nothing says"
)
IS_TOLD = Measure("ratchet.topic_told", "{topic}", "1 where Kafka tells of the line's own topic, else 0")
UP = Measure("ratchet.up", "{server}", "1 where the last look at this server has succeeded, else 0", (SERVER,))
READ = Measure("ratchet.read_time", "s", "how long the last look at ledger and Kafka has taken", ())

MEASURES = {measure.name: measure for measure in list(globals().values()) if isinstance(measure, Measure)}
_UNFINISHED = (State.OPEN, State.PREPARED, State.ABORTED)


def of_line(status: Status) -> Iterator[Point]:
    """What the ledger alone says of a line."""

    def point(measure: Measure, value: float, **labels: str) -> Point:
        return Point(measure.name, {PIPELINE: status.pipeline, **labels}, value)

    def age(at: datetime) -> float:
        return max((status.at - at).total_seconds(), 0.0)

    yield point(HEAD, status.head)
    yield point(LAST, status.last_txid)
    for state in _UNFINISHED:
        yield point(IN_FLIGHT, sum(of.state == state for of in status.unfinished), **{STATE: state})
    yield point(HALTED, int(status.halt is not None))
    yield point(PAUSED, age(status.pause.at) if status.pause else 0.0)
    yield point(FAILURES, max((of.failures for of in status.unfinished), default=0))
    held = status.is_paused_before
    yield point(OLDEST, max((age(of.opened_at) for of in status.unfinished if not held(of)), default=0.0))
    if status.committed_at:
        yield point(COMMITTED, age(status.committed_at))
    if status.maintained_at:
        yield point(MAINTAINED, age(status.maintained_at))
    yield point(REPLAYS, status.replays)
    yield point(GIVEN_UP, len(status.given_up))
    for of in status.destinations:
        where = {DESTINATION: of.destination}
        yield point(LACKS, of.last - of.step, **where)
        since = of.waits_since if of.detached_at is None else None
        yield point(BEHIND, age(since) if since else 0.0, **where)
        yield point(DETACHED, age(of.detached_at) if of.detached_at else 0.0, **where)
    yield point(RECENT_TRANSACTIONS, status.rate.transactions)
    yield point(RECENT_RECORDS, status.rate.records)
    yield point(RECENT_LETTERS, status.rate.dead_letters)


def of_lag(lag: Lag) -> Iterator[Point]:
    """What Kafka's answer adds; of a topic of which it tells nothing only that."""

    def point(measure: Measure, value: float) -> Point:
        return Point(measure.name, {PIPELINE: lag.pipeline}, value)

    is_told = lag.is_told and not lag.is_made_again
    yield point(IS_TOLD, int(is_told))
    if not is_told:
        return
    yield point(LAG_RECORDS, lag.records)
    yield point(WAITING, lag.waiting)
    yield point(LOST, lag.lost)
    if lag.seconds is not None or not lag.records:
        yield point(LAG_SECONDS, lag.seconds or 0.0)
    if lag.deleted_at is not None:
        yield point(LEFT, (lag.deleted_at - lag.at).total_seconds())


def points(statuses: Iterable[Status], lags: Iterable[Lag]) -> Iterator[Point]:
    """Every value of every line."""
    for status in statuses:
        yield from of_line(status)
    for lag in lags:
        yield from of_lag(lag)


def document() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "What `ratchet exporter` measures; made from the code.",
        "How it is run, and the alerts and the dashboard that use it, are in [monitoring](monitoring.md).",
        "",
        "| in Prometheus | in OpenTelemetry | unit | labels | value |",
        "| --- | --- | --- | --- | --- |",
    ]
    for m in MEASURES.values():
        labels = ", ".join(f"`{label}`" for label in m.labels) or "–"
        lines.append(f"| `{m.prometheus}` | `{m.name}` | `{m.unit}` | {labels} | {m.meaning} |")
    return "\n".join([*lines, ""])
