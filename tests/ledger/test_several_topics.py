"""Several topics in one line: one plan over all, how others join, and how one is left, against a real PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import select

from ratchet import MaxDeadLetters
from ratchet.errors import IllegalMove, RecordsLost, SettingsError, SpecError, TopicChanged
from ratchet.ledger.schema import dead_letters, losses, topics
from ratchet.ledger.topics import number_of
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss
from ratchet.operate.effects import effects_of
from ratchet.operate.erase import erase
from ratchet.operate.outcome import lines_of
from ratchet.operate.snapshot.lag import lags, topics_asked
from ratchet.operate.snapshot.places import origins, where
from ratchet.operate.snapshot.transaction import transaction
from ratchet.operate.upcoming import upcoming
from ratchet.operate.verify import verify
from ratchet.protocol.another import WaitingRecords, arrived_records, waiting_records
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.plan import previous_until
from ratchet.sinks.lookup import sink_of
from ratchet.source.topics import Ends
from ratchet.spec.pipeline import DEAD_LETTERS

from .several import Cluster, by_topic, log, spec_of
from .staging import always_active, appended, do, do_slice, planned, prepare, start

LIST = spec_of(name=["eu", "us"])
PATTERN = spec_of(pattern="[a-z]{2}")


def one(ledger, of: Cluster, run: str) -> Begun | Skipped:
    """A run that begins and, if it is given a transaction, commits it."""
    begun = begin(ledger, of.spec, Run("dag", run), of.offsets, always_active)
    if isinstance(begun, Begun):
        prepare(ledger, of.spec, begun)
        assert commit(ledger, of.spec, begun.claim).txids == (begun.claim.txid,)
        settle(ledger, of.spec, Run("dag", run), succeeded=True)
    return begun


def at_place(ledger, sink: str) -> list[tuple[str, int, int]]:
    """(topic, partition, offset) of what readers see at offset 3 of a partition 0, whichever topic it is of."""
    letter, row = dead_letters.c, sink_of(LIST, "rows").target.c
    place = (letter.topic, letter.partition, letter.offset), (row._topic, row._partition, row._offset)
    topic, partition, offset = place[sink == "rows"]
    with ledger.begin() as conn:
        found = conn.execute(select(topic, partition, offset).where(partition == 0, offset == 3).order_by(topic))
        return [tuple(row) for row in found]


def all_of(ledger, of: Cluster, run: str) -> list[Begun]:
    """Runs until nothing is left."""
    done: list[Begun] = []
    while isinstance(begun := one(ledger, of, f"{run}{len(done)}"), Begun):
        done.append(begun)
    return done


def is_whole(ledger, of: Cluster, *begun: Begun) -> None:
    assert [fault for check in verify(ledger, of.spec) for fault in check.faults] == []
    assert shown(ledger) == [(p, o) for p, o, _, _ in planned(*begun)]


def shown(ledger) -> list[tuple[int, int]]:
    """(the line's partition, offset) of each row that readers see, by the topic that they are told."""
    rows = sink_of(LIST, "rows").target.c
    with ledger.begin() as conn:
        line = read_line(conn, "line")
        found = conn.execute(select(rows._topic, rows._partition, rows._offset)).all()
    return sorted((line.topics.partition(topic, p), offset) for topic, p, offset in found)


def ends(ledger, source: int = 1) -> dict[tuple[int, int], int]:
    with ledger.begin() as conn:
        return by_topic(previous_until(conn, "line", source))


@pytest.mark.invariant("I2")
def test_one_plan_is_over_all_partitions_of_all_topics(ledger):
    of = Cluster(LIST, {"us": log("b", 6), "eu": log("a", 10, 4)})
    begun = one(ledger, of, "a")
    assert {(r.topic, r.place[1], len(r)) for part in begun.slices for r in part.ranges} == {
        ("eu", 0, 10),
        ("eu", 1, 4),
        ("us", 0, 6),
    }
    assert [part.name for part in begun.slices] == ["eu-0 [0,10)", "eu-1 [0,4) · us-0 [0,6)"]
    is_whole(ledger, of, begun)
    with ledger.begin() as conn:
        rows = sink_of(LIST, "rows").target.c
        told = conn.execute(select(rows._topic, rows._partition).distinct()).all()
    assert sorted(map(tuple, told)) == [("eu", 0), ("eu", 1), ("us", 0)]
    assert {(r.topic, r.partition) for r in transaction(ledger, "line", 1).ranges} == {("eu", 0), ("eu", 1), ("us", 0)}
    assert effects_of(ledger, begun.claim, (1,)).watermark == {"eu-0": 10, "eu-1": 4, "us-0": 6}


def test_a_record_is_looked_for_in_the_topic_that_is_named(ledger):
    of = Cluster(LIST, {"us": log("b", 6), "eu": log("a", 10, 4)})
    one(ledger, of, "a")
    found = where(ledger, LIST, 0, 3, "us")
    assert (found.topic, [place.topic for place in found.places], found.planned_until) == ("us", ["us"], 6)
    assert [each.rows for each in found.places[0].sinks if each.sink == "rows"] == [
        ({"a": 3, "_partition": 0, "_offset": 3, "_n": 0},)
    ]
    with pytest.raises(SettingsError, match="it is of topics eu, us; say of which one by --topic"):
        where(ledger, LIST, 0, 3)
    with pytest.raises(SettingsError, match="'ca' is none of them"):
        where(ledger, LIST, 0, 3, "ca")


@pytest.mark.parametrize("sink", ["rows", DEAD_LETTERS])
def test_of_several_topics_only_what_is_of_the_named_one_is_looked_for_and_erased(ledger, sink):
    of = Cluster(LIST, {"us": log("b", 6), "eu": log("a", 10, 4)})

    def given(p: int, o: int) -> dict[str, list[dict]]:
        letter = {"topic": ("eu", "us")[number_of(p)], "topic_id": "first", "error": "no number", "value": b"x"}
        return {sink: [letter if sink == DEAD_LETTERS else {"a": o}]}

    begun = begin(ledger, LIST, Run("dag", "a"), of.offsets, always_active)
    do(ledger, LIST, begun, given)
    commit(ledger, LIST, begun.claim)
    place = {"_partition": "0", "_offset": "3"}
    for act in (partial(origins, ledger, LIST, sink), partial(erase, ledger, LIST, sink, reason="why", who="me")):
        for wrong, why in (
            (place, "it is of topics eu, us, .* a partition 0; say of which one, as _topic=eu"),
            ({"_topic": "us"}, "_topic and _partition name a partition of Kafka"),
            ({**place, "_topic": "us", "_partition": "none"}, "_topic and _partition name a partition of Kafka"),
            ({**place, "_topic": "ca"}, "'ca' is none of them"),
        ):
            with pytest.raises(SettingsError, match=why):
                act(key=wrong)
    assert at_place(ledger, sink) == [("eu", 0, 3), ("us", 0, 3)]
    (made,) = origins(ledger, LIST, sink, {**place, "_topic": "us"}).made
    assert (made.topic, made.partition, made.offset) == ("us", 0, 3)
    assert erase(ledger, LIST, sink, {**place, "_topic": "us"}, "why", "me").rows == {1: 1}
    assert at_place(ledger, sink) == [("eu", 0, 3)]
    assert [fault for check in verify(ledger, LIST) for fault in check.faults] == []


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("join", ["earliest", "latest"])
def test_a_topic_that_comes_later_joins_with_the_next_run_and_begins_where_the_spec_says(ledger, join):
    of = Cluster(spec_of(pattern="[a-z]{2}", join=join), {"eu": log("a", 10), "other-topic": log("x", 9)})
    first = one(ledger, of, "a")
    of.logs["ca"] = log("c", 9, 9, beginning=2)
    assert waiting_records(ledger, of.spec.model_copy(update={"schedule": None}), of.offsets) is None
    assert upcoming(ledger, of.spec, of.offsets).waiting == {"eu-0": 0, "ca-0": 0, "ca-1": 0}
    second = one(ledger, of, "b")
    if join == "latest":
        assert isinstance(second, Skipped) and ends(ledger) == {(0, 0): 10, (1, 0): 9, (1, 1): 9}
        of.logs["ca"].stable = {0: 12, 1: 9}
        second = one(ledger, of, "c")
    started = {"earliest": {(1, 0): 2, (1, 1): 2}, "latest": {(1, 0): 9}}[join]
    assert {(1, r.place[1]): r.from_offset for part in second.slices for r in part.ranges} == started
    is_whole(ledger, of, first, second)
    with ledger.begin() as conn:
        row = conn.execute(select(topics.c.joined_txid, topics.c.begun).where(topics.c.topic == "ca")).one()
    at = {"earliest": 2, "latest": 9}[join]
    said = {"rule": join, "starts": {"1000000": at, "1000001": at}, "logs": {"1000000": 2, "1000001": 2}}
    assert tuple(row) == (2, said)
    opened = transaction(ledger, "line", 2).history[0]
    assert opened.detail["joins"] == [said]
    assert f"topic ca joins the line by join={join}: ca-0 at {at}, ca-1 at {at}" in opened.detail["why"]
    assert "joins" not in transaction(ledger, "line", 1).history[0].detail


@pytest.mark.invariant("I2")
def test_what_retention_deletes_of_a_topic_after_it_has_joined_is_a_loss_that_names_it(ledger):
    of = Cluster(PATTERN, {"eu": log("a", 10)})
    one(ledger, of, "a")
    of.logs["ca"] = log("c", 0)
    assert isinstance(one(ledger, of, "b"), Skipped)
    of.logs["ca"] = log("c", 9, beginning=4)
    with pytest.raises(RecordsLost, match=r"line: ca-0: retention has deleted ca-0\[0,4\), 4 offsets that no"):
        one(ledger, of, "c")
    said = lines_of(accept_loss(ledger, of.spec, of.offsets, "they are lost", "me"))
    assert said[0] == "transaction 2 is VOIDED: ca-0[0,4), 4 offsets, are accepted as lost"
    assert [r.from_offset for part in one(ledger, of, "d").slices for r in part.ranges] == [4]


def test_topics_keep_their_numbers_whatever_the_order_of_the_list(ledger):
    of = Cluster(LIST, {"eu": log("a", 10), "us": log("b", 6)})
    first = one(ledger, of, "a")
    of.spec = spec_of(name=["ca", "us", "eu"])
    of.logs |= {"ca": log("c", 5), "eu": log("a", 12)}
    second = one(ledger, of, "b")
    assert {r.topic: r.partition for part in second.slices for r in part.ranges} == {"eu": 0, "ca": 2_000_000}
    is_whole(ledger, of, first, second)


@pytest.mark.invariant("I2")
def test_an_answer_from_before_another_topic_had_joined_is_not_planned_by(ledger):
    of = Cluster(PATTERN, {"eu": log("a", 10)})
    first = one(ledger, of, "a")
    asked = []

    def meanwhile(*given):
        asked.append(given[1].topics.names)
        found = of.offsets(*given)
        if len(asked) == 1:
            # Another run finds a topic that this answer has under the number of one that comes later.
            of.logs |= {"us": log("b", 6)}
            of.others = one(ledger, of, "other")
            # There it would be read beyond what is planned, and not be told from a log that was cut.
            of.logs |= {"ca": log("c", 9)}
            return Cluster(PATTERN, {"eu": log("a", 10), "ca": log("c", 9)}).offsets(*given)
        return found

    begun = begin(ledger, of.spec, Run("dag", "b"), meanwhile, always_active)
    assert asked == [("eu",), ("eu", "us")]
    prepare(ledger, of.spec, begun)
    commit(ledger, of.spec, begun.claim)
    assert {r.topic: r.partition for part in begun.slices for r in part.ranges} == {"ca": 2_000_000}
    is_whole(ledger, of, first, of.others, begun)


def test_a_line_begins_at_the_offsets_that_are_named_by_topic(ledger):
    begin_at = {"eu": {0: 7, 1: 3}, "us": {0: 6}}
    of = Cluster(spec_of(name=["eu", "us"], begin=begin_at), {"us": log("b", 8), "eu": log("a", 10, 4)})
    begun = one(ledger, of, "a")
    starts = {(r.topic, r.place[1]): r.from_offset for part in begun.slices for r in part.ranges}
    assert starts == {("eu", 0): 7, ("eu", 1): 3, ("us", 0): 6}
    assert "eu-0 at 7, eu-1 at 3, us-0 at 6" in begun.message


@pytest.mark.parametrize(
    ("begin_at", "why"),
    [
        ({"eu": {0: 7}, "us": {0: 6}}, "topic eu has partition 1 as well"),
        ({"eu": {0: 7, 1: 3}, "us": {0: 6, 4: 2}}, "topic us has no partition 4; it has 0"),
        ({"eu": {0: 7, 1: 3}, "us": {0: 60}}, "topic us: the log of partition 0 is from offset 0 to 8, and 60 is not"),
    ],
)
def test_offsets_that_are_not_those_of_the_topics_are_refused_by_topic(ledger, begin_at, why):
    of = Cluster(spec_of(name=["eu", "us"], begin=begin_at), {"us": log("b", 8), "eu": log("a", 10, 4)})
    with pytest.raises(SpecError, match=why):
        one(ledger, of, "a")


@pytest.mark.parametrize("how", ["removed", "deleted"])
def test_a_topic_that_is_gone_stops_the_line_until_a_person_leaves_it(ledger, how):
    of = Cluster(PATTERN, {"eu": log("a", 10), "us": log("b", 6)})
    first = one(ledger, of, "a")
    of.logs["eu"].stable, of.logs["us"].stable = {0: 15}, {0: 9}
    begun = start(ledger, of.spec, of, "b")
    if how == "deleted":
        del of.logs["us"]
        why = "topic us of the line is not in Kafka any more"
    else:
        of.spec = spec_of(name=["eu"])
        why = "topic us of the line is none of the spec's topics, eu"
    of.logs["eu"].stable = {0: 18}
    with pytest.raises(TopicChanged, match=f"{why}; nothing was planned; .* `ratchet accept-loss line"):
        begin(ledger, of.spec, Run("dag", "c"), of.offsets, always_active)
    dry = lines_of(accept_loss(ledger, of.spec, of.offsets, "it is over", "me", dry_run=True))
    left = "line: topic us is left: nothing more of it is planned, what was committed stays; its plans end there"
    assert f"{left}: us-0 at 9" in dry
    done = accept_loss(ledger, of.spec, of.offsets, "it is over", "me")
    lost = ["us-0[6,9)"] if how == "deleted" else []
    assert [str(r) for change in done.changes for r in change.ranges] == lost
    with ledger.begin() as conn:
        assert [(r.partition, r.from_offset, r.until_offset) for r in conn.execute(select(losses))] == (
            [(1_000_000, 6, 9)] if lost else []
        )
    settle(ledger, of.spec, Run("dag", "b"), succeeded=False, reason="over")
    again = begin(ledger, of.spec, Run("dag", "b", 1), of.offsets, always_active)
    # Where the topic is still in Kafka, what was planned of it is read.
    assert {r.topic for part in again.slices for r in part.ranges} == ({"eu"} if lost else {"eu", "us"})
    prepare(ledger, of.spec, again)
    assert commit(ledger, of.spec, again.claim).txids == (2,)
    third = one(ledger, of, "c")
    assert {(r.topic, r.from_offset) for part in third.slices for r in part.ranges} == {("eu", 15)}
    is_whole(ledger, of, first, again, third)
    assert begun.claim.txid == again.claim.txid
    with pytest.raises(IllegalMove, match="there is no loss to accept"):
        accept_loss(ledger, of.spec, of.offsets, "it is over", "me")


def test_what_other_code_has_voted_for_of_a_topic_that_is_left_is_begun_anew_as_long_as_kafka_has_it(ledger):
    of = Cluster(LIST, {"eu": log("a", 10), "us": log("b", 6)})
    begun = start(ledger, of.spec, of, "a")
    do_slice(ledger, of.spec, begun, 1)
    of.spec = spec_of(name=["eu"])
    accept_loss(ledger, of.spec, of.offsets, "not now", "me")
    settle(ledger, of.spec, Run("dag", "a"), succeeded=False, reason="over")
    of.spec = of.spec.model_copy(update={"gates": [MaxDeadLetters(0.5)]})
    again = one(ledger, of, "b")
    assert (again.claim.txid, again.claim.epoch, again.how) == (begun.claim.txid, 2, "adopted")
    is_whole(ledger, of, begun)


def test_what_other_code_has_voted_for_of_a_topic_that_is_gone_from_kafka_is_not_begun_anew(ledger):
    of = Cluster(LIST, {"eu": log("a", 10), "us": log("b", 6)})
    do_slice(ledger, of.spec, start(ledger, of.spec, of, "a"), 1)
    of.spec = spec_of(name=["eu"])
    del of.logs["us"]
    accept_loss(ledger, of.spec, of.offsets, "it is over", "me")
    settle(ledger, of.spec, Run("dag", "a"), succeeded=False, reason="over")
    of.spec = of.spec.model_copy(update={"gates": [MaxDeadLetters(0.5)]})
    with pytest.raises(RecordsLost, match=r"Kafka does not have us-0\[0,6\) any more, which it has voted for"):
        one(ledger, of, "b")


@pytest.mark.invariant("I2")
def test_a_topic_that_was_left_goes_on_where_its_plans_had_ended_if_it_comes_back(ledger):
    of = Cluster(LIST, {"eu": log("a", 10), "us": log("b", 6)})
    first = one(ledger, of, "a")
    of.spec = spec_of(name=["eu"])
    accept_loss(ledger, of.spec, of.offsets, "not now", "me")
    assert arrived_records(ledger, "line", 4, Cluster(LIST, of.logs).offsets) is None
    of.logs["us"].stable = {0: 9}
    assert isinstance(one(ledger, of, "b"), Skipped)
    of.spec = LIST
    assert arrived_records(ledger, "line", 4, of.offsets) == WaitingRecords(3)
    second = one(ledger, of, "c")
    assert [str(r) for part in second.slices for r in part.ranges] == ["us-0[6,9)"]
    is_whole(ledger, of, first, second)


def test_a_line_may_leave_its_other_topics_where_one_that_was_left_is_back(ledger):
    of = Cluster(LIST, {"eu": log("a", 10), "us": log("b", 6)})
    first = one(ledger, of, "a")
    of.spec = spec_of(name=["us"])
    accept_loss(ledger, of.spec, of.offsets, "not now", "me")
    of.spec, of.logs["eu"].stable = spec_of(name=["eu"]), {0: 13}
    with pytest.raises(TopicChanged, match="topic us of the line is none of the spec's topics, eu"):
        one(ledger, of, "b")
    said = lines_of(accept_loss(ledger, of.spec, of.offsets, "the other way round", "me"))
    assert any("topic us is left" in line for line in said)
    second = one(ledger, of, "c")
    assert [str(r) for part in second.slices for r in part.ranges] == ["eu-0[10,13)"]
    is_whole(ledger, of, first, second)


@pytest.mark.invariant("I2")
def test_a_topic_that_is_made_again_opens_a_source_in_which_the_others_go_on(ledger):
    of = Cluster(LIST, {"eu": log("a", 10), "us": log("b", 6)})
    first = one(ledger, of, "a")
    of.logs["us"].stable = {0: 9}
    begun = start(ledger, of.spec, of, "b")
    of.logs |= {"us": log("again", 4), "eu": log("a", 13)}
    with pytest.raises(
        TopicChanged, match="topic us with id b; Kafka's us has id again: it was deleted and made again"
    ):
        begin(ledger, of.spec, Run("dag", "c"), of.offsets, always_active)
    said = lines_of(accept_loss(ledger, of.spec, of.offsets, "so it is", "me"))
    assert (
        "line: topic us was made again, with id again: source 2 begins; what was committed of the one before stays"
        in said
    )
    assert "line: us-0 goes on at offset 0; it was planned up to 9" in said
    assert not any("eu-0 goes on" in line for line in said)
    settle(ledger, of.spec, Run("dag", "b"), succeeded=False, reason="over")
    again = begin(ledger, of.spec, Run("dag", "b", 1), of.offsets, always_active)
    assert [r for part in again.slices for r in part.ranges] == [] and begun.claim.txid == 2
    prepare(ledger, of.spec, again)
    assert commit(ledger, of.spec, again.claim).txids == (2,)
    third = one(ledger, of, "c")
    assert {str(r) for part in third.slices for r in part.ranges} == {"eu-0[10,13)", "us-0[0,4)"}
    assert ends(ledger, 2) == {(0, 0): 13, (1, 0): 4}
    assert [fault for check in verify(ledger, of.spec) for fault in check.faults] == []
    assert appended(ledger) == sorted((p, o, 0, t) for p, o, _, t in shown_as_kafka(first, again, third))
    with ledger.begin() as conn:
        ids = conn.execute(select(topics.c.source, topics.c.topic, topics.c.topic_id).order_by(*topics.primary_key))
        assert [tuple(row) for row in ids] == [(1, "eu", "a"), (1, "us", "b"), (2, "eu", "a"), (2, "us", "again")]


def shown_as_kafka(*begun: Begun) -> list[tuple[int, int, int, int]]:
    return [(p % 1_000_000, o, n, txid) for p, o, n, txid in planned(*begun)]


def test_the_ledger_refuses_a_spec_that_names_none_of_the_lines_topics(ledger):
    of = Cluster(LIST, {"eu": log("a", 10), "us": log("b", 6), "ca": log("c", 3)})
    one(ledger, of, "a")
    of.spec = spec_of(name=["ca"])
    for move in (lambda: one(ledger, of, "b"), lambda: accept_loss(ledger, of.spec, of.offsets, "so be it", "me")):
        with pytest.raises(TopicChanged, match="of topics eu, us"):
            move()


def test_the_lag_of_a_line_is_that_of_all_its_topics(ledger):
    of = Cluster(PATTERN, {"eu": log("a", 10), "us": log("b", 6)})
    assert one(ledger, of, "a").claim.txid == 1
    held = {
        "eu": Ends("eu", "a", {0: 0}, {0: 14}, None, None, {}),
        "us": Ends("us", "b", {0: 0}, {0: 9}, None, None, {}),
    }
    with ledger.begin() as conn:
        assert topics_asked(conn, [PATTERN]) == {"eu", "us"}
        found = lags(conn, ["line"], held)["line"]
        missing = lags(conn, ["line"], {"eu": held["eu"]})["line"]
        again = lags(conn, ["line"], held | {"us": replace(held["us"], topic_id="z")})["line"]
    assert (found.topic, found.records, found.waiting, found.is_told) == ("eu, us", 7, 7, True)
    assert [(p.topic, p.partition, p.since, p.lag) for p in found.partitions] == [("eu", 0, 10, 4), ("us", 0, 6, 3)]
    assert (missing.is_told, missing.is_made_again, again.is_made_again) == (False, False, True)
