"""What the next run would take is what it takes then, and looking ahead changes nothing in the whole database."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from psycopg import sql
from sqlalchemy import make_url, text

from ratchet import Append, Arrivals, Condition, MaxDeadLetters
from ratchet.errors import BrokerUnreachable, Locked, RatchetError
from ratchet.ledger.connection import Ledger, driver_of
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.operate.migrate import migrate
from ratchet.operate.repartition import repartitioned
from ratchet.operate.replay import ask
from ratchet.operate.upcoming import Upcoming, lines_of, upcoming
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skipped
from ratchet.protocol.claims import settle
from tests.answers import answer

from .moving import KEYS
from .moving import SPEC as MOVING
from .moving import one as moved
from .staging import PLAIN, SPEC, Log, always_active, committed, expire, fail, prepare, start

ARRIVING = SPEC.model_copy(update={"runs": Arrivals(), "max_records": 7, "slice_records": 2})
DAILY = SPEC.model_copy(update={"plan": "interval"})
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def everything(ledger: Ledger) -> dict[str, list[str]]:
    """Every row of every table, as text, and every relation there is."""
    named = text(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind "
        "in ('r', 'v') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema' order by 1, 2"
    )
    with ledger.begin() as conn:
        found = {}
        for relation in conn.execute(named).all():
            rows = driver_of(conn).execute(sql.SQL("select (t.*)::text from {} t").format(sql.Identifier(*relation)))
            found[".".join(relation)] = sorted(row for (row,) in rows)
        return found


def foreseen(ledger: Ledger, spec, log: Log, **how) -> Upcoming:
    """What is said of the next run, which then does just that."""
    before = everything(ledger)
    found = upcoming(ledger, spec, log.offsets, how.get("interval_end"))
    assert everything(ledger) == before
    assert all(lines_of(found))
    try:
        given = begin(ledger, spec, Run("dag", f"after {datetime.now(UTC)}"), log.offsets, always_active, **how)
    except RatchetError as error:
        assert (found.how, found.code, found.why, found.txid) == ("refused", error.code, str(error), None)
        return found
    if isinstance(given, Skipped):
        assert (found.how, found.code, found.why, found.txid) == ("skipped", given.reason, given.message, None)
        return found
    claim = given.claim
    assert (found.how, found.slices, found.code) == (given.how, given.slices, None)
    assert (found.txid, found.revision, found.epoch) == (claim.txid, claim.revision, claim.epoch)
    return found


def test_the_first_transaction_of_a_line_and_those_after_it(ledger, log):
    found = foreseen(ledger, SPEC, log)
    assert [str(r) for part in found.slices for r in part.ranges] == ["t-0[0,10)", "t-1[0,10)"]
    assert (found.offsets, found.waiting) == (20, {0: 40, 1: 40})
    log.beginning, log.stable = {0: 0, 1: 0, 2: 0}, {0: 50, 1: 50, 2: 9}
    more = foreseen(ledger, PLAIN, log)
    assert more.waiting == {0: 31, 1: 31, 2: 7}
    assert found.not_due and not more.not_due, "the first has made them due"
    lines = list(lines_of(found))
    assert lines[0] == "line: the next run takes transaction 1, allocated: 20 offsets in 2 slices"
    assert "  80 more offsets wait: 40 of partition 0, 40 of partition 1" in lines


def test_where_records_start_runs_and_where_few_are_taken_at_once(ledger, log):
    assert [len(part) for part in foreseen(ledger, ARRIVING, log).slices] == [2, 2, 2, 1]
    log.stable = {0: 4, 1: 3}
    assert foreseen(ledger, ARRIVING, log).code == "no_records"


def test_what_nobody_has_asked_for_yet_is_said_to_wait(ledger, log):
    log.stable = {0: 10, 1: 10}
    committed(ledger, log, "a")
    log.stable = {0: 14, 1: 10}
    found = foreseen(ledger, SPEC, log)
    assert found.offsets == 4 and "waits for the next time" in str(found.not_due)


def test_by_interval_a_run_without_one_plans_nothing_and_one_with_it_to_its_end(ledger, log):
    assert foreseen(ledger, DAILY, log).code == "no_interval"
    log.wanted[NOON] = {0: 3, 1: 0}
    found = foreseen(ledger, DAILY, log, interval_end=NOON)
    assert found.offsets == 3 and found.waiting == {0: 47, 1: 50}


def test_what_is_abandoned_comes_first_and_what_is_silent_is_named(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    expire(ledger)
    found = foreseen(ledger, SPEC, log)
    assert found.how == "allocated" and found.silent == ("a",)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="lost")
    found = foreseen(ledger, SPEC, log)
    assert (found.how, found.txid, found.slices, found.waiting) == ("adopted", 1, begun.slices, {})


def test_what_was_begun_with_other_code_is_begun_anew(ledger, log):
    prepare(ledger, SPEC, start(ledger, SPEC, log, "a"))
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="lost")
    other = SPEC.model_copy(update={"gates": [MaxDeadLetters(0.5), Condition("some", "true")]})
    found = foreseen(ledger, other, log)
    assert (found.how, found.epoch) == ("adopted", 2)
    assert found.gates == ("at most 0.5 of the records are dead letters", "some")


def test_a_line_that_is_halted_full_or_empty_says_so(ledger, log):
    for run in "abcd":
        start(ledger, SPEC, log, run)
    assert foreseen(ledger, SPEC, log).code == "max_in_flight"
    for run in "abc":
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="no such column")
    for run in ("a", "b"):
        fail(ledger, log, run, 1)
        fail(ledger, log, run, 2)
    assert foreseen(ledger, SPEC, log).how == "adopted"


def test_a_halt_is_refused_with_its_ways_out(ledger, log):
    for run in "abc":
        fail(ledger, log, run)
    found = foreseen(ledger, SPEC, log)
    assert found.code == "RAT-405" and "ratchet void line 1" in found.why


def test_a_replay_that_waits_comes_where_nothing_else_does_and_past_a_loss(ledger, log):
    committed(ledger, log, "a")
    committed(ledger, log, "b")
    log.stable = {0: 20, 1: 20}
    ask(ledger, SPEC, 1, 2, "corrected", "me")
    found = foreseen(ledger, SPEC, log)
    assert (found.how, found.txid, found.revision) == ("replayed", 1, 1)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=True)


@pytest.mark.parametrize("has_a_replay", [False, True])
def test_records_that_are_lost_are_refused_unless_a_replay_waits(ledger, log, has_a_replay):
    committed(ledger, log, "a")
    log.beginning = {0: 15, 1: 0}
    if has_a_replay:
        ask(ledger, SPEC, 1, 1, "corrected", "me")
    found = foreseen(ledger, SPEC, log)
    assert (found.how, found.code) == (("replayed", None) if has_a_replay else ("refused", "RAT-306"))


def test_another_topic_of_the_name_and_more_partitions_are_refused(ledger, log):
    committed(ledger, log, "a")
    log.stable |= {2: 10}
    log.beginning |= {2: 0}
    assert foreseen(ledger, SPEC, log).code == "RAT-305"
    log.topic_id = "second"
    assert foreseen(ledger, SPEC, log).code == "RAT-304"


def test_a_source_that_waits_is_begun_when_the_one_before_is_planned_to_its_end(moving, topic):
    topic.produce(*KEYS[:6])
    assert isinstance(moved(moving, topic, "a"), Begun)
    topic.add_partitions(4)
    topic.produce("k0", "k2")
    repartitioned(moving, MOVING, topic.offsets, "more partitions", "me")
    topic.produce("k1", "k3", "k0")
    assert foreseen(moving, MOVING, topic).offsets == 1, "what is before it comes first"
    found = foreseen(moving, MOVING, topic)
    assert found.offsets == 4 and {r.partition for part in found.slices for r in part.ranges} == {0, 1, 2, 3}


def test_a_voided_transaction_is_passed_and_the_next_is_its_successor(ledger, log):
    start(ledger, SPEC, log, "a")
    void(ledger, SPEC, 1, "for the test", "me")
    assert foreseen(ledger, SPEC, log).txid == 2


WIDER = SPEC.model_copy(
    update={
        "sinks": [Append("rows", columns="a bigint, b string"), *SPEC.sinks[1:], Append("more", columns="a bigint")]
    }
)
OTHER = SPEC.model_copy(update={"sinks": [Append("rows", columns="a string"), *SPEC.sinks[1:]]})


def test_a_spec_that_differs_from_its_tables_is_said_to_with_what_a_migration_would_do(ledger, log):
    committed(ledger, log, "a")
    found = foreseen(ledger, WIDER, log)
    assert found.code == "RAT-204" and not found.tables.fit
    assert "added b to ratchet_delta.public.rows" in found.tables.changes[0]
    assert "created view more" in found.tables.changes[1] and found.tables.refused is None
    found = foreseen(ledger, OTHER, log)
    assert found.code == "RAT-204" and "rows" in str(found.tables.refused) and found.tables.changes == ()


@pytest.mark.parametrize("how", ["access share", "row exclusive"])
def test_whoever_looks_ahead_waits_for_nobody_who_reads_or_writes_and_holds_up_none(ledger, log, how):
    committed(ledger, log, "a")
    with Ledger(ledger.url) as other, other.begin() as conn:
        for table in ("totals", "latest", 'ratchet_delta."public.rows"'):
            conn.execute(text(f"lock table {table} in {how} mode"))
        conn.execute(text("select 1 from rows"))
        found = upcoming(ledger, WIDER, log.offsets)
        waited = conn.execute(text("select count(*) from pg_locks where not granted")).scalar_one()
    assert len(found.tables.changes) == 2 and waited == 0


def test_a_role_that_may_not_migrate_sees_what_a_migration_would_do(ledger, log):
    """It does what runs do, so it may try a begin."""
    committed(ledger, log, "a")
    role = f"plans_{datetime.now(UTC):%H%M%S%f}"
    with ledger.begin() as conn:
        conn.execute(text(f"create role {role} login password 'p'"))
    migrate(ledger.url, [SPEC], pipeline_role=role)
    url = make_url(ledger.url).set(username=role, password="p").render_as_string(hide_password=False)
    try:
        with Ledger(url) as limited:
            assert foreseen(limited, SPEC, log).tables.fit
            assert upcoming(limited, WIDER, log.offsets).tables == upcoming(ledger, WIDER, log.offsets).tables
            refused = upcoming(limited, OTHER, log.offsets).tables.refused
            assert refused == upcoming(ledger, OTHER, log.offsets).tables.refused and refused
    finally:
        with ledger.begin() as conn:
            conn.execute(text(f"drop owned by {role}"))
            conn.execute(text(f"drop role {role}"))


@pytest.mark.parametrize("has_line", [True, False], ids=["of a line", "before its migration"])
def test_a_role_that_may_not_see_a_table_is_told_the_rest_and_which_grant_is_missing(ledger, log, has_line):
    mine = Append("books.orders", columns="a bigint", existing=True)
    spec = SPEC.model_copy(update={"sinks": [*SPEC.sinks, mine]})
    wider = spec.model_copy(update={"sinks": [*WIDER.sinks, mine]})
    added = '_txid bigint, _topic text collate "C", _partition int, _offset bigint, _n int'
    role = f"Plans {datetime.now(UTC):%H%M%S%f}"
    with ledger.begin() as conn:
        conn.execute(text("create schema books"))
        conn.execute(text(f"create table books.orders (a bigint, {added})"))
        conn.execute(text(f"create role \"{role}\" login password 'p'"))
    migrate(ledger.url, [spec if has_line else SPEC], pipeline_role=role)
    url = make_url(ledger.url).set(username=role, password="p").render_as_string(hide_password=False)
    try:
        with ledger.begin() as conn:
            conn.execute(text(f'revoke all on books.orders from "{role}"'))
            conn.execute(text(f'revoke all on schema books from "{role}"'))
        with Ledger(url) as limited:
            found = upcoming(limited, wider, log.offsets)
            (unseen,) = found.tables.unseen
            assert unseen == (
                "books.orders may not be seen by this role, which lacks a right: "
                f'GRANT USAGE ON SCHEMA books TO "{role}"; GRANT SELECT ON books.orders TO "{role}"'
            )
            assert f"  tables: {unseen}" in lines_of(found) and not found.tables.fit
            every = upcoming(ledger, wider, log.offsets).tables
            assert every.unseen == () and found.tables.refused is None is every.refused
            rest = [said for said in every.changes if "orders" not in said]
            assert len(rest) == 2 and [said for said in found.tables.changes if "orders" not in said] == rest
            with ledger.begin() as conn:
                for grant in unseen.partition(": ")[2].split("; "):
                    conn.execute(text(grant))
            assert upcoming(limited, wider, log.offsets).tables == every
    finally:
        with ledger.begin() as conn:
            conn.execute(text(f'drop owned by "{role}"'))
            conn.execute(text(f'drop role "{role}"'))


def test_a_ledger_that_is_not_there_yet_is_said_to_be_made(ledger_url, log):
    with Ledger(ledger_url) as empty:
        found = foreseen(empty, SPEC, log)
    assert found.code == "RAT-204" and found.tables.changes[0].startswith("ledger: created")


def test_servers_that_do_not_answer_are_no_answer(ledger, log):
    def no_kafka(*_):
        raise BrokerUnreachable

    with pytest.raises(BrokerUnreachable):
        upcoming(ledger, SPEC, no_kafka)


def test_a_line_that_somebody_has_locked_is_not_waited_for(ledger, log):
    committed(ledger, log, "a")
    with Ledger(ledger.url, lock_seconds=0.2) as impatient, ledger.begin() as conn:
        conn.execute(text("select 1 from ratchet.pipelines for update"))
        with pytest.raises(Locked):
            upcoming(impatient, SPEC, log.offsets)


def test_the_command_prints_it(ledger, log, kafka_properties, capsys, monkeypatch):
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    from ratchet import cli, command

    admin = KafkaAdminClient(bootstrap_servers=kafka_properties["bootstrap.servers"])
    admin.create_topics([NewTopic("t", 2, 1)], raise_errors=False)
    admin.close()
    monkeypatch.setenv("RATCHET_LEDGER_URL", ledger.url)
    monkeypatch.setenv("RATCHET_KAFKA", json.dumps(kafka_properties))
    monkeypatch.setenv("RATCHET_PIPELINES", "tests.ledger.pipelines")
    command.variables.cache_clear()
    before = everything(ledger)
    with pytest.raises(SystemExit):
        cli.main(lambda: cli.app(["plan", "line", "--json"]))
    said = answer("plan", capsys.readouterr().out)
    assert (said["how"], said["code"], said["waiting"]) == ("skipped", "no_records", {"0": 0, "1": 0})
    with pytest.raises(SystemExit):
        cli.main(lambda: cli.app(["plan", "line"]))
    assert capsys.readouterr().out.splitlines() == [
        "line: the next run begins nothing: no records wait in topic t below its last stable offset; the line "
        "begins by begin=earliest: t-0 at 0, t-1 at 0",
        "  gates that will be asked: none",
        "  tables: as the spec needs them",
    ]
    assert everything(ledger) == before
