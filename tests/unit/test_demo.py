"""The demo's own parts: its content is the same in every run, and its proof sees what it must."""

import json
from threading import Event

import pytest

from ratchet.dev.demo import content, proof, publisher
from ratchet.dev.stack import CHECKOUT
from ratchet.spec.loading import load_pipeline


@pytest.fixture(scope="module")
def flights():
    return content.flights(load_pipeline("flights"))


@pytest.fixture(scope="module")
def planes():
    return content.planes(load_pipeline("aircraft"))


def test_every_flight_is_there_in_time_order_with_25_broken_records_among_them(flights):
    kinds = flights.records["kind"].value_counts()
    assert kinds["ordinary"] == 336_776
    assert len(flights) - kinds["ordinary"] == content.BROKEN
    assert flights.records["scheduled"].is_monotonic_increasing
    assert flights.records["tailnum"].isna().sum() == 2_512


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_docs_say_how_many_records_there_are_of_what(flights, planes, page):
    (said,) = [line for line in (CHECKOUT / page).read_text().splitlines() if line.startswith("It publishes ")]
    for number in (len(flights) + len(planes), content.BROKEN, len(planes)):
        assert f"{number:,} " in said


def test_the_demos_producer_says_no_warning_of_what_it_tries_again(planes, monkeypatch):
    given = {}

    class Stopped(Exception):
        pass

    def producer(properties):
        given.update(properties)
        raise Stopped

    monkeypatch.setattr(publisher, "Producer", producer)
    with pytest.raises(Stopped):
        publisher.publish({"bootstrap.servers": "nowhere:1"}, planes, {}, 1, Event(), lambda _: None)
    # Of syslog's levels, 3 is an error and 4 a warning.
    assert given["log_level"] == 3


def test_offsets_are_dense_and_a_key_has_one_partition(flights, planes):
    for topic in (flights, planes):
        expected = {p: list(range(end)) for p, end in topic.ends.items()}
        assert topic.records.groupby("_partition")["_offset"].apply(list).to_dict() == expected
        assert topic.records.groupby("key")["_partition"].nunique().max() == 1


def test_what_a_killed_run_left_out_is_exactly_what_the_next_one_sends(planes):
    whole = list(planes.messages({}))
    done = {0: 1_000, 1: 700}
    rest = list(planes.messages(done))
    assert [m for m in whole if m.offset >= done[m.partition]] == rest
    assert len(rest) == len(planes) - 1_700
    assert list(planes.messages(planes.ends)) == []


def test_values_are_what_the_csv_says(planes):
    first = next(planes.messages({}))
    assert first.key == b"N10156"
    assert json.loads(first.value) == {
        "year": 2004,
        "type": "Fixed wing multi engine",
        "manufacturer": "EMBRAER",
        "model": "EMB-145XR",
        "engines": 2,
        "seats": 55,
        "engine": "Turbo-fan",
    }


def test_updates_and_tombstones_matter(planes):
    kinds = planes.records["kind"].value_counts()
    assert kinds["tombstone"] > 100
    assert planes.records[planes.records["kind"] == "ordinary"].duplicated("tailnum").sum() > 300


@pytest.mark.parametrize(
    ("found", "differences"),
    [
        ([(0, 1), (0, 2)], ()),
        ([(0, 2), (0, 1)], ()),
        ([(0, 1)], ("missing (0, 2)",)),
        ([(0, 1), (0, 2), (0, 2)], ("surplus (0, 2)",)),
        ([(0, 1), (0, 1)], ("missing (0, 2)", "surplus (0, 1)")),
    ],
)
def test_the_proof_compares_multisets_and_not_counts(found, differences):
    check = proof._same("rows", found, [(0, 1), (0, 2)])
    assert check.differences == differences
    assert check.equal is not bool(differences)
