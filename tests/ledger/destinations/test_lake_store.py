"""A Delta Lake table in an object store has each row once, whatever is lost on the way there."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from ratchet.destinations import lake_storage
from ratchet.errors import DestinationRefused, DestinationUnreachable, SettingsError
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow
from ratchet.protocol.votes import cast_vote
from tests.s3proxy import Bucket

from ..staging import a_try, appended, start, vote_of, write_all
from .between import Between, Loss
from .elsewhere import places
from .lakes import LakeOf, Where

COMMIT = r"/_delta_log/\d{20}\.json$"
LOSSES = [
    Loss.CLOSED,
    *(pytest.param(how, marks=pytest.mark.all) for how in (Loss.BEFORE, Loss.RESET, Loss.UNAVAILABLE, Loss.SILENT)),
]


@pytest.fixture
def between(bucket: Bucket) -> Iterator[Between]:
    with Between(bucket.endpoint) as proxy:
        yield proxy


@pytest.fixture
def by_proxy(in_store: LakeOf, bucket: Bucket, between: Between, monkeypatch: pytest.MonkeyPatch) -> LakeOf:
    """The same lake, whose requests may be lost, and whose answers are not waited for very long."""
    monkeypatch.setitem(lake_storage._LIMITS, "timeout", "1s")
    return LakeOf(in_store.ledger, Where.within(bucket, between.url), in_store.log)


def test_of_conditional_puts_at_once_the_store_does_one(bucket):
    """What all that follows rests on; a store that looks first and writes then fails here."""
    for number in range(20):
        gate, done = threading.Barrier(5), []

        def put(writer: int, number: int = number, gate: threading.Barrier = gate, done: list = done) -> None:
            gate.wait()
            body = f"{writer}".encode() * 5_000
            if bucket.ask("PUT", f"key-{number}", body, If_None_Match="*").status_code == 200:
                done.append(body)

        threads = [threading.Thread(target=put, args=(writer,)) for writer in range(5)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert done == [bucket.ask("GET", f"key-{number}").content]


@pytest.mark.invariant("I1", "I3", "I7")
def test_a_table_in_a_store_has_the_rows_of_its_sink_and_of_revisions_those_of_the_last(in_store, bucket):
    in_store.run("a")
    in_store.run("b")
    assert in_store.rows() == appended(in_store.ledger) and in_store.mark().step == 2
    in_store.run("b", clear_number=1, drop=3)
    in_store.run("a", clear_number=1, drop=10_000)
    assert in_store.rows() == appended(in_store.ledger) and in_store.mark().step == 4
    assert all(key.startswith("lake/rows/") for key in bucket.keys())


_SENDER = """
import json, sys
from ratchet.destinations import lake
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow
from tests.ledger.destinations.lakes import LakeOf, Where
url, name, options = sys.argv[1:]
write, apply, said = lake.write_deltalake, lake.Lake.apply, []
def late(*given, **named):
    print("ready", flush=True)
    sys.stdin.readline()
    write(*given, **named)
def noted(*given):
    said.append(apply(*given))
    return said[-1]
lake.write_deltalake, lake.Lake.apply = late, noted
with Ledger(url) as ledger:
    of = LakeOf(ledger, Where(name, json.loads(options)), None)
    for _ in sys.stdin:
        said.clear()
        follow(ledger, of.spec, of.opens)
        print(json.dumps(said), flush=True)
"""


class Sender:
    """A process that sends a step when it is told, and waits between the look at the mark and the commit."""

    def __init__(self, lake: LakeOf):
        given = [sys.executable, "-c", _SENDER, lake.ledger.url, lake.where.name, json.dumps(lake.where.options)]
        piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(given, cwd=Path(__file__).parents[3], **piped)

    def tell(self) -> None:
        """Begin, or go on."""
        print(file=self._process.stdin, flush=True)

    def said(self) -> object:
        """ "ready", or what the destination has answered to each try."""
        line = self._process.stdout.readline().strip()
        return line if line == "ready" else json.loads(line)

    def end(self) -> None:
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def kill(self) -> None:
        """Leave nothing of it, also where the test has failed."""
        self._process.kill()
        self._process.wait()


@contextmanager
def senders(lake: LakeOf, count: int) -> Iterator[list[Sender]]:
    made = [Sender(lake) for _ in range(count)]
    try:
        yield made
        for each in made:
            each.end()
    finally:
        for each in made:
            each.kill()


@pytest.mark.invariant("I1", "I2")
def test_of_processes_that_commit_the_same_step_at_once_one_succeeds_and_a_late_one_changes_nothing(in_store):
    in_store.run("a")
    with senders(in_store, 2) as both:
        for number, run in enumerate("bc", 2):
            in_store.decide(run)
            for each in both:
                each.tell()
            assert [each.said() for each in both] == ["ready", "ready"]
            for each in both:
                each.tell()
            assert sorted(map(str, (each.said() for each in both))) == ["[False]", "[True]"]
            assert in_store.rows() == appended(in_store.ledger) and in_store.mark().step == number
        in_store.decide("e")
        late = both[0]
        late.tell()
        assert late.said() == "ready"
        follow(in_store.ledger, in_store.spec, in_store.opens)
        in_store.run("f")
        before, version = in_store.rows(), in_store.delta().version()
        late.tell()
        assert late.said() == [False]
        assert (in_store.rows(), in_store.delta().version()) == (before, version)
        assert before == appended(in_store.ledger)


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.invariant("I1", "I2")
def test_a_commit_whose_answer_is_lost_neither_doubles_nor_loses_a_step(in_store, by_proxy, between, how):
    in_store.run("a")
    for number, revised in ((2, False), (3, True)):
        if not revised:
            by_proxy.decide("b")
        plan = between.lose(how, COMMIT)
        between.seen.clear()
        try:
            if revised:
                by_proxy.run("a", clear_number=1, drop=2)
            else:
                follow(by_proxy.ledger, by_proxy.spec, by_proxy.opens)
            told = False
        except DestinationUnreachable as error:
            assert "its mark tells what it has taken" in str(error)
            told = True
        plan.go_on.set()
        assert len(plan.met) == 1
        # The library tries again what a store may not have got, and takes the refusal of that for another's success.
        tries = [status for method, path, status in between.seen if (method, path) == ("PUT", plan.met[0])]
        assert (told, tries.count(412)) == {
            Loss.BEFORE: (False, 0),
            Loss.CLOSED: (False, 1),
            Loss.UNAVAILABLE: (False, 1),
            Loss.RESET: (True, 0),
            Loss.SILENT: (True, 0),
        }[how]
        follow(by_proxy.ledger, by_proxy.spec, by_proxy.opens)
        assert in_store.rows() == appended(in_store.ledger) != []
        assert in_store.mark().step == number and in_store.steps() == [(number, True)]


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.invariant("I1")
def test_a_table_is_made_once_whichever_answer_is_lost(in_store, by_proxy, between, how):
    by_proxy.decide("a")
    for version in (0, 1):
        between.lose(how, rf"/_delta_log/{version:020}\.json$").go_on.set()
        try:
            follow(by_proxy.ledger, by_proxy.spec, by_proxy.opens)
        except DestinationUnreachable:
            assert how in (Loss.RESET, Loss.SILENT)
    follow(by_proxy.ledger, by_proxy.spec, by_proxy.opens)
    assert in_store.rows() == appended(in_store.ledger) != [] and in_store.mark().step == 1


@pytest.mark.invariant("I1", "I2")
def test_a_commit_that_reaches_the_store_late_is_the_step_or_nothing(in_store, by_proxy, between):
    in_store.run("a")
    for run, other_is_first in (("b", False), ("c", True)):
        by_proxy.decide(run)
        plan = between.lose(Loss.HELD, COMMIT)
        with pytest.raises(DestinationUnreachable):
            follow(by_proxy.ledger, by_proxy.spec, by_proxy.opens)
        if other_is_first:
            follow(in_store.ledger, in_store.spec, in_store.opens)
        plan.go_on.set()
        assert plan.done.wait(60)
        assert [status for _, path, status in between.seen if path == plan.met[0]] == [412 if other_is_first else 200]
        follow(in_store.ledger, in_store.spec, in_store.opens)
        assert in_store.rows() == appended(in_store.ledger) and in_store.mark().step == (3 if other_is_first else 2)


@pytest.mark.all
@pytest.mark.parametrize("how", [Loss.CLOSED, Loss.RESET])
@pytest.mark.invariant("I1")
def test_a_table_that_is_made_anew_has_its_rows_once_though_the_answer_is_lost(in_store, by_proxy, between, how):
    in_store.run("a")
    detach(in_store.ledger, "line", in_store.address, "for the test", "me")
    in_store.run("b")
    between.lose(how, COMMIT)
    given = in_store.ledger, by_proxy.spec, in_store.address, How.ANEW, "for the test", "me", by_proxy.opens
    try:
        attach(*given)
    except DestinationUnreachable:
        attach(*given)
    assert in_store.rows() == appended(in_store.ledger) and in_store.steps() == [(2, True)]


@pytest.mark.all
@pytest.mark.parametrize("how", [Loss.FORBIDDEN, Loss.CLOSED, Loss.RESET])
@pytest.mark.invariant("I1")
def test_a_checkpoint_that_fails_after_its_commit_costs_a_try_and_no_row(bare, log, bucket, between, how):
    lake = LakeOf(bare, Where.within(bucket), log)
    lake.where.create(("a", pa.int64()), configuration={"delta.checkpointInterval": "1"})
    migrate(bare.url, [lake.spec])
    lake.run("a")
    lake.decide("b")
    by_proxy = LakeOf(bare, Where.within(bucket, between.url), log)
    plan = between.lose(how, r"/_delta_log/.*checkpoint", times=2)
    with suppress(DestinationRefused, DestinationUnreachable):
        follow(bare, by_proxy.spec, by_proxy.opens)
    assert plan.met and lake.mark().step == 2
    follow(bare, by_proxy.spec, by_proxy.opens)
    lake.run("c")
    assert lake.rows() == appended(bare) and lake.steps() == [(3, True)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_CONDITIONAL_PUT", "disabled"),
        *(
            pytest.param(name, value, marks=pytest.mark.all)
            for name, value in {
                "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
                "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
                "AWS_ACCESS_KEY_ID": "another",
                "AWS_SKIP_SIGNATURE": "true",
            }.items()
        ),
    ],
)
@pytest.mark.invariant("I1")
def test_what_the_environment_says_of_stores_does_not_change_how_a_step_goes_there(
    in_store, by_proxy, between, monkeypatch, name, value
):
    in_store.run("a")
    monkeypatch.setenv(name, value)
    by_proxy.decide("b")
    plan = between.lose(Loss.HELD, COMMIT)
    with pytest.raises(DestinationUnreachable):
        follow(by_proxy.ledger, by_proxy.spec, by_proxy.opens)
    follow(in_store.ledger, in_store.spec, in_store.opens)
    plan.go_on.set()
    assert plan.done.wait(60) and [status for _, path, status in between.seen if path == plan.met[0]] == [412]
    assert in_store.rows() == appended(in_store.ledger) != []


_KILLED = """
import json, sys
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow
from tests.ledger.destinations.lakes import LakeOf, Where
url, name, options = sys.argv[1:]
with Ledger(url) as ledger:
    of = LakeOf(ledger, Where(name, json.loads(options)), None, "a bigint, b string")
    follow(ledger, of.spec, of.opens)
"""


@pytest.mark.all
@pytest.mark.invariant("I1", "I2")
def test_an_upload_that_a_killed_process_has_begun_is_seen_by_nobody_and_stays(bare, log, bucket):
    lake = LakeOf(bare, Where.within(bucket), log, "a bigint, b string")
    migrate(bare.url, [lake.spec])
    lake.run("a", of=lambda at: {"a": 1, "b": "x"})
    # No two alike, so that a file is larger than what is sent at once.
    begun = start(bare, lake.spec, log, "b")
    for part in begun.slices:
        work = a_try(bare, begun, part.number, lake.spec)
        made = [{"a": 1, "b": random.Random(at["_offset"]).randbytes(400_000).hex(), **at} for at in places(work)]
        votes = write_all(bare, lake.spec, work, {"rows": made, "totals": [], "latest": []})
        cast_vote(bare, lake.spec, work.token, vote_of(lake.spec, work, votes))
    with pytest.raises(SettingsError):
        commit(bare, lake.spec, begun.claim)
    with Between(bucket.endpoint) as between:
        plan = between.lose(Loss.SILENT, "partNumber=", times=100)
        given = [sys.executable, "-c", _KILLED, bare.url, lake.where.name, json.dumps(bucket.options(between.url))]
        with subprocess.Popen(given, cwd=Path(__file__).parents[3]) as process:
            assert plan.reached.wait(60)
            process.kill()
    assert process.returncode == -signal.SIGKILL
    (left,) = bucket.uploads()
    assert left.startswith("lake/rows/part-") and left not in bucket.keys()
    follow(bare, lake.spec, lake.opens)
    assert lake.rows() == appended(bare) and bucket.uploads() == [left]
