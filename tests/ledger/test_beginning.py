"""Where a line begins: by the rule of its spec, once, kept and told; what lies before is no part of it, and no loss."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from ratchet.errors import Fenced, RecordsLost, SpecError
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import pipelines, ranges
from ratchet.ledger.work import OffsetRange, Run
from ratchet.operate.actions import accept_loss
from ratchet.operate.attention import may_want_records, standings
from ratchet.operate.drop import drop
from ratchet.operate.effects import effects_of
from ratchet.operate.excerpt import next_records
from ratchet.operate.migrate import migrate
from ratchet.operate.repartition import repartitioned
from ratchet.operate.snapshot.lag import lags
from ratchet.operate.upcoming import lines_of, upcoming
from ratchet.operate.verify import verify
from ratchet.protocol import beginning
from ratchet.protocol.another import arrived_records
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skip
from ratchet.protocol.commit import Committed, commit
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.source.topics import Ends
from ratchet.spec.pipeline import Pipeline

from .staging import PLAIN, SPEC, Log, always_active, committed, do_slice, positions_of, prepare, start

TIME = datetime(2024, 5, 1, 10, tzinfo=UTC)


def of(rule: object, spec: Pipeline = SPEC) -> Pipeline:
    """The same spec with another `begin`."""
    return spec.model_copy(update={"source": spec.source.model_copy(update={"begin": rule})})


def starts(ledger: Ledger) -> dict[int, int]:
    c = ranges.c
    with ledger.begin() as conn:
        return {p: at for p, at in conn.execute(select(c.partition, c.until_offset).where(c.txid == 0))}


def taken(begun: Begun) -> list[str]:
    return [str(r) for part in begun.slices for r in part.ranges]


def first_event(ledger: Ledger, txid: int = 1):
    with ledger.begin() as conn:
        return history.read(conn, SPEC.name, txid)[0]


@pytest.fixture
def cut(log: Log) -> Log:
    """Retention has been at it, and a transaction is open: the log, its last stable offset and its end differ."""
    log.beginning, log.stable, log.end = {0: 3, 1: 0}, {0: 20, 1: 8}, {0: 20, 1: 12}
    log.since = {TIME: {0: 7, 1: 12}}
    return log


RULES = [
    ("earliest", {0: 3, 1: 0}, "earliest", 0),
    ("latest", {0: 20, 1: 8}, "latest", 25),
    (TIME, {0: 7, 1: 12}, "2024-05-01T10:00:00+00:00", 16),
    ({1: 12, 0: 3}, {0: 3, 1: 12}, "{0: 3, 1: 12}", 12),
]


@pytest.mark.invariant("I2")
@pytest.mark.parametrize(("rule", "at", "named", "before"), RULES, ids=["earliest", "latest", "time", "offsets"])
def test_a_line_begins_by_the_rule_of_its_spec_and_its_history_says_so(ledger, cut, rule, at, named, before):
    spec = of(rule)
    found = begin(ledger, spec, Run("dag", "a"), cut.offsets, always_active)
    assert starts(ledger) == at
    left = f"; the {before} offsets that Kafka had before that are no part of it" if before else ""
    said = f"the line begins by begin={named}: t-0 at {at[0]}, t-1 at {at[1]}{left}"
    assert found.message.endswith(said) or f"{said}; 2 slices" in found.message or f"{said}; 1 slice" in found.message
    # What is behind the undecided transaction comes when it is decided.
    cut.stable = {0: 22, 1: 14}
    cut.end = dict(cut.stable)
    if not isinstance(found, Begun):
        assert found.reason == Skip.NO_RECORDS
        found = start(ledger, spec, cut, "b")
    event = first_event(ledger)
    assert event.detail["begins"] == {
        "rule": named,
        "starts": {str(p): o for p, o in at.items()},
        "logs": {"0": 3, "1": 0},
    }
    assert event.detail["why"] == f"allocated; {said}"
    begun = [found]
    while isinstance(more := begin(ledger, spec, Run("dag", f"c{len(begun)}"), cut.offsets, always_active), Begun):
        begun.append(more)
    assert "begins by" not in more.message
    got = sorted(place for each in begun for place in positions_of(each))
    assert got == [(p, o) for p in (0, 1) for o in range(at[p], cut.stable[p])]


def test_no_two_first_begins_decide_where_a_line_begins(ledger, log):
    """Each of them hears that the log has grown; the first that is kept counts, whatever becomes of its run."""
    together, lock = threading.Barrier(8, timeout=60), threading.Lock()

    def one(number: int):
        answers: list[TopicOffsets] = []

        def offsets(*asked) -> TopicOffsets:
            with lock:
                log.stable = {0: log.stable[0] + 1, 1: 50}
                answers.append(log.offsets(*asked))
            # Where another run has planned meanwhile, Kafka is asked again.
            if len(answers) == 1:
                together.wait()
            return answers[-1]

        return begin(ledger, of("latest"), Run("dag", f"r{number}"), offsets, always_active)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    at = starts(ledger)
    assert 51 <= at[0] <= 58 and at[1] == 50
    got = sorted(place for each in found if isinstance(each, Begun) for place in positions_of(each))
    assert got == [(0, offset) for offset in range(at[0], at[0] + len(got))]


def test_what_a_first_begin_has_decided_stays_though_it_is_killed_before_it_plans(ledger, log, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as cut_off:
        cut_off.setattr("ratchet.protocol.allocate.anchor", killed)
        with pytest.raises(Killed):
            begin(ledger, of("latest"), Run("dag", "a"), log.offsets, always_active)
    log.stable, log.since = {0: 56, 1: 53}, {TIME: {0: 1, 1: 1}}
    # Neither the ends nor the spec of now count any more, nor does a time that nobody has asked about.
    for rule in ("latest", TIME):
        found = upcoming(ledger, of(rule), log.offsets)
        assert [str(r) for part in found.slices for r in part.ranges] == ["t-0[50,56)", "t-1[50,53)"]
    assert taken(start(ledger, of("latest"), log, "a")) == ["t-0[50,56)", "t-1[50,53)"]


@pytest.mark.invariant("I2")
def test_a_partition_that_comes_later_begins_at_zero_whatever_the_rule(ledger, log):
    spec = of("latest", PLAIN)
    begin(ledger, spec, Run("dag", "a"), log.offsets, always_active)
    log.stable |= {2: 5}
    log.beginning |= {2: 2}
    with pytest.raises(RecordsLost, match=r"t-2\[0,2\), 2 offsets"):
        begin(ledger, spec, Run("dag", "b"), log.offsets, always_active)
    log.beginning[2] = 0
    assert taken(start(ledger, spec, log, "b")) == ["t-2[0,5)"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({0: 2, 1: 0}, "the log of partition 0 is from offset 3 to 20, and 2 is not within"),
        ({0: 3, 1: 13}, "the log of partition 1 is from offset 0 to 12, and 13 is not within"),
        ({0: 3, 1: 0, 4: 0}, "topic t has no partition 4; it has 0, 1;"),
        ({0: 3}, "topic t has partition 1 as well, and nothing says where it begins"),
        (datetime(2999, 1, 1, tzinfo=UTC), "2999-01-01 00:00:00 UTC has not come yet"),
    ],
    ids=["below", "above", "absent", "unnamed", "to come"],
)
def test_a_beginning_that_there_is_not_is_refused_and_nothing_is_begun(ledger, cut, rule, said):
    cut.since[datetime(2999, 1, 1, tzinfo=UTC)] = {0: 20, 1: 12}
    spec = of(rule)
    with pytest.raises(SpecError, match=f"line: Topic.begin: .*{said}.*nothing was begun"):
        begin(ledger, spec, Run("dag", "a"), cut.offsets, always_active)
    with ledger.begin() as conn:
        assert conn.execute(select(pipelines)).all() == []
    found = upcoming(ledger, spec, cut.offsets)
    assert (found.how, found.code, found.begins, found.waiting) == (
        "refused",
        "RAT-101",
        None,
        {},
    ) and said in found.why


def test_a_dry_run_says_where_a_line_would_begin_and_keeps_nothing_of_it(ledger, cut):
    for rule, _, named, _ in RULES:
        found = upcoming(ledger, of(rule), cut.offsets)
        assert str(found.begins).startswith(f"the line begins by begin={named}: t-0 at ")
        assert sum(f"begin={named}:" in line for line in lines_of(found)) == 1
    assert found.waiting == {0: 0, 1: 0} and starts(ledger) == {}
    begin(ledger, of("latest"), Run("dag", "a"), cut.offsets, always_active)
    assert "by begin=latest" in str(upcoming(ledger, of("earliest"), cut.offsets).begins)
    cut.stable[0] += 1
    start(ledger, of("latest"), cut, "b")
    assert upcoming(ledger, of("latest"), cut.offsets).begins is None


def test_of_many_partitions_some_are_named(ledger, log):
    log.beginning, log.stable = dict.fromkeys(range(40), 0), dict.fromkeys(range(40), 2)
    begun = begin(ledger, of({p: 1 for p in range(40)}, PLAIN), Run("dag", "a"), log.offsets, always_active)
    assert re.search(
        r"begin=\{0: 1, 1: 1, [0-9:, ]+…: t-0 at 1, t-1 at 1, t-2 at 1 and 37 more; the 40 offsets", begun.message
    )
    assert len(begun.message) < 500
    assert len(first_event(ledger).detail["begins"]["starts"]) == 40


def test_another_rule_changes_nothing_later_and_is_said_once(ledger, log):
    first = start(ledger, of("earliest"), log, "a")
    same = start(ledger, of("earliest"), log, "b")
    assert "Topic.begin" not in first.message + same.message
    said = "Topic.begin is latest now, and the line has begun by earliest: it goes on where its plans have ended"
    changed = start(ledger, of("latest"), log, "c")
    assert changed.message.split("; ")[1] == said and first_event(ledger, 3).detail["why"] == f"allocated; {said}"
    assert taken(changed) == ["t-0[20,30)", "t-1[20,30)"]
    again = start(ledger, of("latest"), log, "d")
    assert "Topic.begin" not in again.message and "Topic.begin" not in first_event(ledger, 4).detail["why"]


def test_neither_does_it_stop_what_was_begun_with_the_one_before(ledger, log):
    assert of("latest").code_hash == SPEC.code_hash
    begun = start(ledger, SPEC, log, "a")
    for part in begun.slices:
        do_slice(ledger, of(TIME), begun, part.number)
    assert isinstance(commit(ledger, of({0: 1}), begun.claim), Committed)


def test_what_lies_before_the_beginning_is_no_loss_no_lag_and_not_looked_for(ledger, log):
    spec = of({0: 40, 1: 45})
    begun = start(ledger, spec, log, "a")
    prepare(ledger, spec, begun)
    commit(ledger, spec, begun.claim)
    assert [fault for check in verify(ledger, spec) for fault in check.faults] == []
    assert effects_of(ledger, begun.claim, ()).watermark == {"0": 50, "1": 50}
    # Retention comes up to where the line is, and not beyond.
    log.beginning, log.stable = {0: 50, 1: 50}, {0: 54, 1: 50}
    ends = {"t": Ends("t", "first", log.beginning, log.stable, 3_600_000, None, {})}
    with ledger.begin() as conn:
        found = lags(conn, [spec.name], ends)[spec.name]
    assert (found.records, found.lost, [part.since for part in found.partitions]) == (4, 0, [50])
    with pytest.raises(Exception, match="there is no loss to accept"):
        accept_loss(ledger, spec, log.offsets, "for the test", "me")
    assert taken(start(ledger, spec, log, "b")) == ["t-0[50,54)"]


def test_what_is_lost_behind_the_beginning_is_one_and_its_transaction_says_where_the_line_began(ledger, log):
    spec = of("latest")
    begin(ledger, spec, Run("dag", "a"), log.offsets, always_active)
    log.beginning, log.stable = {0: 53, 1: 50}, {0: 60, 1: 50}
    with pytest.raises(RecordsLost, match=r"t-0\[50,53\), 3 offsets"):
        begin(ledger, spec, Run("dag", "b"), log.offsets, always_active)
    accept_loss(ledger, spec, log.offsets, "for the test", "me")
    event = first_event(ledger)
    assert event.detail["why"].startswith("records are lost; the line begins by begin=latest: t-0 at 50")
    assert event.detail["begins"]["starts"] == {"0": 50, "1": 50}
    assert taken(start(ledger, spec, log, "c")) == ["t-0[53,60)"]


def test_keys_that_have_moved_before_the_beginning_are_told_from_there_on(ledger, log):
    spec = of({0: 40, 1: 45})
    begin(ledger, spec, Run("dag", "a"), log.offsets, always_active, max_records=1)
    log.wanted = {TIME: {0: 10, 1: 48}}
    done = repartitioned(ledger, spec, log.offsets, "for the test", "me", TIME)
    assert {at.partition: at.offset for at in done.opened.starts} == {0: 40, 1: 48}


def test_a_line_that_has_begun_without_records_wants_no_run_until_some_come(ledger, log):
    """Its maintenance and its exporter count from where it began."""
    spec = of("latest")
    begin(ledger, spec, Run("dag", "a"), log.offsets, always_active)
    assert arrived_records(ledger, spec.name, 4, log.offsets) is None
    with ledger.begin() as conn:
        standing = standings(conn, [spec.name])[spec.name]
    assert (standing.planned, standing.reached) == ({0: 50, 1: 50}, {0: 50, 1: 50})
    assert not may_want_records(spec, standing)
    log.stable[1] += 2
    assert arrived_records(ledger, spec.name, 4, log.offsets).records == 2


def test_a_look_at_the_next_records_is_at_those_with_which_the_line_would_begin(ledger, cut):
    for rule, at, _, _ in RULES:
        spec = of(rule)
        work = next_records(ledger, spec, cut.offsets(None, KnownLogs(lineages={}), *beginning.times(spec)), 1000)
        wanted = [OffsetRange("t", p, at[p], until) for p, until in cut.stable.items() if at[p] < until]
        assert list(work.ranges) == wanted


def test_a_dropped_line_begins_anew_by_the_rule_of_its_spec(ledger_url, ledger, log):
    committed(ledger, log, "a")
    drop(ledger, SPEC.name, "for the test", "me")
    migrate(ledger_url, [SPEC])
    assert begin(ledger, of("latest"), Run("dag", "b"), log.offsets, always_active).reason == Skip.NO_RECORDS
    assert starts(ledger) == {0: 50, 1: 50}


def test_a_line_that_is_dropped_amid_a_begin_begins_by_no_answer_that_lacks_its_time(ledger_url, ledger, log):
    spec = of(TIME)
    log.since = {TIME: {0: 7, 1: 7}}
    committed(ledger, log, "a")

    def offsets(*asked) -> TopicOffsets:
        said = log.offsets(*asked)
        if said.since is None:
            drop(ledger, spec.name, "for the test", "me")
            migrate(ledger_url, [spec])
        return said

    with pytest.raises(Fenced, match="the line was dropped while this run began; nothing was begun"):
        begin(ledger, spec, Run("dag", "b"), offsets, always_active)
    assert taken(start(ledger, spec, log, "b")) == ["t-0[7,17)", "t-1[7,17)"]
