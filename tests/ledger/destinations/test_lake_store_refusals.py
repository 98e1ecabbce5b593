"""What is said where an object store, or the way to it, is not as it should be; and nothing is lost by it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ratchet.destinations import lake_storage
from ratchet.destinations.object_store import ObjectStore
from ratchet.errors import DestinationRefused, DestinationUnreachable, SettingsError
from ratchet.operate.doctor import destinations
from ratchet.operate.doctor.finding import Severity, examine
from ratchet.operate.migrate import migrate
from ratchet.operate.snapshot.status import status
from ratchet.protocol.follow import follow
from tests.s3proxy import LOGIN, PASSWORD, Bucket

from ..running import here
from ..staging import appended
from .between import Between, Loss
from .lakes import LakeOf, Where


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def elsewhere(lake: LakeOf, **options: str) -> LakeOf:
    """The same lake by other options."""
    assert lake.where.options
    return replace(lake, where=replace(lake.where, options=lake.where.options | options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aws_secret_access_key": "wrong-canary"}, "the object store answers 403 Forbidden: SignatureDoesNotMatch"),
        pytest.param(
            {"aws_access_key_id": "nobody"},
            "the object store answers 403 Forbidden: InvalidAccessKeyId",
            marks=pytest.mark.all,
        ),
    ],
)
def test_a_login_that_is_refused_is_told_without_it_and_the_step_comes_when_it_is_right(in_store, options, said):
    in_store.run("a")
    in_store.decide("b")
    wrong = elsewhere(in_store, **options)
    with pytest.raises(DestinationRefused, match=f"line: rows: {in_store.address}: {said}") as raised:
        follow(wrong.ledger, wrong.spec, wrong.opens)
    assert "canary" not in str(raised.value) and "\n" not in str(raised.value) and "\x1b" not in str(raised.value)
    follow(in_store.ledger, in_store.spec, in_store.opens)
    assert in_store.rows() == appended(in_store.ledger)


def test_a_bucket_that_is_missing_is_told_and_the_table_is_made_when_it_is_there(bare, log, bucket, object_store):
    missing = Bucket(bucket.endpoint, "not-there-yet")
    lake = LakeOf(bare, Where.within(missing), log)
    migrate(bare.url, [lake.spec])
    with pytest.raises(DestinationRefused, match="the object store answers 404 Not Found: NoSuchBucket: The specified"):
        lake.run("a")
    missing.ask("PUT")
    follow(lake.ledger, lake.spec, lake.opens)
    assert lake.rows() == appended(lake.ledger) != []


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        (Loss.FORBIDDEN, DestinationRefused, "403 Forbidden: AccessDenied: Access Denied; its mark tells"),
        pytest.param(
            Loss.FULL,
            DestinationUnreachable,
            "507 Insufficient Storage: StorageFull: The store is full; what is committed waits",
            marks=pytest.mark.all,
        ),
    ],
)
@pytest.mark.parametrize("path", [r"\.parquet$", r"/_delta_log/\d{20}\.json$"])
@pytest.mark.invariant("I1")
def test_a_store_that_cannot_be_written_has_nothing_of_the_step(in_store, bucket, how, error, said, path):
    in_store.run("a")
    before = in_store.rows()
    in_store.decide("b")
    with Between(bucket.endpoint) as between:
        between.lose(how, path, times=100)
        by_proxy = replace(in_store, where=Where.within(bucket, between.url))
        with pytest.raises(error, match=f"the object store answers {said}"):
            follow(by_proxy.ledger, by_proxy.spec, by_proxy.opens)
    assert in_store.rows() == before and in_store.steps() == [(1, True)]
    follow(in_store.ledger, in_store.spec, in_store.opens)
    assert in_store.rows() == appended(in_store.ledger) != before


@pytest.mark.all
def test_a_store_that_is_away_is_waited_for(in_store):
    in_store.run("a")
    in_store.decide("b")
    away = elsewhere(in_store, aws_endpoint="http://127.0.0.1:1", aws_endpoint_url_s3="http://127.0.0.1:1")
    with pytest.raises(DestinationUnreachable, match="Connection refused .*; what is committed waits for it") as raised:
        follow(away.ledger, away.spec, away.opens)
    assert PASSWORD not in str(raised.value)
    follow(in_store.ledger, in_store.spec, in_store.opens)
    assert in_store.rows() == appended(in_store.ledger)


@pytest.mark.all
def test_a_store_that_says_nothing_holds_nobody_up_for_long(in_store, silent, monkeypatch):
    limits = {"timeout": "1s", "retry_timeout": "2s"}
    assert limits.keys() < lake_storage._LIMITS.keys()
    monkeypatch.setattr(lake_storage, "_LIMITS", lake_storage._LIMITS | limits)
    in_store.run("a")
    in_store.decide("b")
    away = elsewhere(in_store, aws_endpoint=silent, aws_endpoint_url_s3=silent)
    began = time.monotonic()
    with pytest.raises(DestinationUnreachable, match="operation timed out; what is committed waits for it"):
        follow(away.ledger, away.spec, away.opens)
    assert time.monotonic() - began < 30


@pytest.mark.all
def test_of_a_private_pipeline_a_store_says_no_place_and_no_message(in_store):
    in_store.run("a")
    (to,) = in_store.spec.sinks[0].destinations
    wrong = elsewhere(in_store, aws_secret_access_key="wrong")
    with wrong.open() as outside:
        outside._owner = replace(outside._owner, private=True)
        with pytest.raises(DestinationRefused, match="the object store answers 403 Forbidden: SignatureDoesNotMatch; "):
            outside.mark()
    away = elsewhere(in_store, aws_endpoint="http://127.0.0.1:1", aws_endpoint_url_s3="http://127.0.0.1:1")
    with away.open() as outside:
        outside._owner = replace(outside._owner, private=True)
        with pytest.raises(DestinationUnreachable, match=f"{to.address}: OSError; "):
            outside.mark()


@pytest.mark.parametrize("name", ["AWS_SESSION_TOKEN", "TOKEN"])
def test_a_token_of_the_environment_that_would_be_added_to_a_login_is_refused(in_store, monkeypatch, name):
    monkeypatch.setenv(name, "canary-token")
    with pytest.raises(SettingsError, match=f"environment variable {name} would be added to it") as raised:
        in_store.run("a")
    assert "canary" not in str(raised.value)


@pytest.mark.all
def test_where_neither_the_connection_nor_the_machine_has_keys_that_is_said(in_store):
    in_store.run("a")
    assert in_store.where.options
    options = {name: value for name, value in in_store.where.options.items() if "key" not in name}
    # Where a machine in a cloud would ask.
    options["aws_metadata_endpoint"] = "http://127.0.0.1:1"
    nobody = replace(in_store, where=replace(in_store.where, options=options))
    with pytest.raises(DestinationUnreachable, match="no keys and no role were found, neither in the connection nor"):
        nobody.mark()


@pytest.mark.invariant("I1")
def test_a_store_that_does_not_ask_whether_an_object_is_there_is_refused(in_store, bucket):
    in_store.decide("a")
    with Between(bucket.endpoint) as between:
        between.forgets = lambda path: bucket.ask("DELETE", path.split("/", 2)[2])
        by_proxy = replace(in_store, where=Where.within(bucket, between.url))
        with pytest.raises(DestinationRefused, match="the store does not honour If-None-Match: .*"):
            follow(by_proxy.ledger, by_proxy.spec, by_proxy.opens)
    assert bucket.keys() == []
    follow(in_store.ledger, in_store.spec, in_store.opens)
    assert in_store.rows() == appended(in_store.ledger) != []
    assert all(key.startswith("lake/rows/") and "_ratchet" not in key for key in bucket.keys())


def test_no_repr_shows_how_a_store_is_reached(bucket):
    store = ObjectStore("lake", "orders", bucket.options())
    shown = repr(store), repr(lake_storage.Storage.of(store.url, store))
    assert LOGIN not in str(shown) and PASSWORD not in str(shown) and "s3://lake/orders" in shown[1]


@pytest.mark.all
def test_the_doctor_looks_at_it_and_says_what_it_finds(in_store):
    def one(lake: LakeOf):
        (finding,) = examine(destinations.checks(lake.ledger, [lake.spec], lambda _: lake.opens))
        return finding.severity, finding.error, finding.what

    assert one(in_store) == (Severity.OK, None, f"{in_store.address}, of rows, answers, and has nothing yet")
    in_store.run("a")
    assert one(in_store) == (Severity.OK, None, f"{in_store.address}, of rows, answers, and is at step 1 of 1")
    severity, error, what = one(elsewhere(in_store, aws_secret_access_key="wrong"))
    assert (severity, error) == (Severity.FAULT, "RAT-602") and "SignatureDoesNotMatch" in what
    other = elsewhere(in_store, aws_endpoint="http://127.0.0.1:1", aws_endpoint_url_s3="http://127.0.0.1:1")
    severity, error, what = one(other)
    assert (severity, error) == (Severity.FAULT, "RAT-601") and "Connection refused" in what


def test_the_command_finds_a_store_by_its_connection_and_says_what_that_lacks(in_store, monkeypatch, bucket):
    in_store.run("a")
    monkeypatch.setenv("TESTED_LAKE", in_store.where.name)
    env = {
        "RATCHET_LEDGER_URL": in_store.ledger.url,
        "RATCHET_PIPELINES": "tests.ledger.destinations.stored",
        "COLUMNS": "80",
    }
    whole = {"url": bucket.endpoint, "login": LOGIN, "password": PASSWORD, "extra": {"region_name": "us-east-1"}}
    why = ["--reason", "for the test"]

    def attach(**other: object) -> tuple[int, str, str]:
        found = env | {"RATCHET_CONNECTIONS": json.dumps({"lakes": whole | other})}
        return here(("attach", "line", in_store.address, *why), found)

    assert here(("detach", "line", in_store.address, *why), env)[0] == 0
    in_store.run("b")
    assert len({row[3] for row in in_store.rows()}) == 1
    for connection, part in (
        (
            {"url": "storage.example:9000"},
            "its endpoint 'storage.example:9000' is no address; write it as https://HOST",
        ),
        ({"password": None}, "has only one of login and password"),
        ({"extra": {"role_arn": "canary"}}, "'role_arn' in its extra is not supported for object stores"),
        ({"password": "canary"}, "the object store answers 403 Forbidden: SignatureDoesNotMatch"),
    ):
        code, _, said = attach(**connection)
        assert code == 1 and part in " ".join(said.split()) and "canary" not in said, said
        assert "Traceback" not in said and status(in_store.ledger, "line").destinations[0].detached_at is not None
    assert attach()[0] == 0
    assert in_store.rows() == appended(in_store.ledger)
