"""Several topics of one line as Kafka has them: asked for together, by names or by a pattern."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from ratchet import Append, Json, Pipeline, Topic
from ratchet.errors import CompactedTopic, UnknownTopic
from ratchet.ledger.connection import Ledger
from ratchet.ledger.topics import Topics
from ratchet.operate.doctor.finding import Severity
from ratchet.operate.doctor.topics import checks
from ratchet.operate.migrate import migrate
from ratchet.operate.upkeep import mirror
from ratchet.source.columnar import ColumnarSource
from ratchet.source.interval import IntervalEnd
from ratchet.source.kafka import Kafka
from ratchet.source.offsets import KnownLogs
from ratchet.source.port import Origin
from ratchet.spec.subscription import MARKS

from .driven import Driven, send
from .test_interval import at, send_at
from .test_rights import ENOUGH, granted, made, refusal


@pytest.fixture
def named(make_topic):
    """Topics of three names that begin alike, with one, two and three partitions."""
    start = f"several-{uuid4().hex[:8]}"
    return [make_topic(n, f"{start}-{name}") for n, name in enumerate(("eu", "us", "ca"), 1)]


def spec_of(**source) -> Pipeline:
    return Pipeline(
        name="several",
        source=Topic(value=Json("a bigint"), **source),
        sinks=[Append("rows_several", columns="a bigint")],
    )


def test_all_partitions_of_several_topics_are_told_in_one_look_of_as_many_requests_as_one_takes(
    kafka_properties, client, named, monkeypatch
):
    send(kafka_properties, named[0], 5)
    send(kafka_properties, named[2], 6, partitions=3)
    sent: list[object] = []
    admin = client.admin
    inner = admin._manager.send
    monkeypatch.setattr(admin._manager, "send", lambda *of, **how: sent.append(of) or inner(*of, **how))
    client.offsets(named[0], known=KnownLogs(lineages={}))
    alone = len(sent)
    found = client.offsets(named, known=KnownLogs(lineages={}))
    assert len(sent) == 2 * alone
    ends = {(0, 0): 5, (1, 0): 0, (1, 1): 0, (2, 0): 2, (2, 1): 2, (2, 2): 2}
    assert found.stable == found.end == {n * 1_000_000 + p: at for (n, p), at in ends.items()}
    assert found.topics.names == tuple(named) and len(set(found.topics.ids.values())) == 3
    assert found.lineages == {p: ((0, 0),) for p in found.stable}
    again = client.offsets(named, known=KnownLogs(found.topics, found.lineages))
    assert (again.lineages, again.kept) == (found.lineages, {})


def test_a_pattern_finds_topics_by_their_whole_names_behind_those_that_are_known(client, make_topic, named):
    start = named[0].removesuffix("-eu")
    make_topic(1, f"not-{named[0]}")
    source = spec_of(pattern=f"{start}-..").source
    known = Topics.one(named[1])
    assert client.offsets(source).topics.names == tuple(sorted(named))
    assert client.offsets(source, known=KnownLogs(known)).topics.names == (named[1], named[2], named[0])
    everything = client.offsets(spec_of(pattern=rf"{start}.*|{MARKS}|__consumer_offsets").source)
    assert set(everything.topics.names) == {*named}
    with pytest.raises(UnknownTopic, match=f"has a name that the pattern '{start}' matches as a whole; create one"):
        client.offsets(spec_of(pattern=start).source)


def test_topics_that_are_not_there_are_named(client, named):
    with pytest.raises(UnknownTopic, match="there are no topics 'absent', 'gone' at"):
        client.offsets([*named, "absent", "gone"])
    known = KnownLogs(Topics.one("gone", "id"), may_lack=True)
    found = client.offsets(named, known=known)
    assert found.topics.ids.keys() == {*named} and found.topics.names == ("gone", *named)
    with pytest.raises(UnknownTopic, match="there is no topic 'gone'"):
        client.offsets(["gone"], known=known)


def test_one_compacted_topic_among_several_is_named(client, make_topic, named):
    compacted = make_topic(cleanup_policy="compact")
    with pytest.raises(CompactedTopic, match=compacted):
        client.offsets([*named, compacted])


def test_where_an_interval_ends_is_told_of_every_topic(kafka_properties, client, named):
    send_at(kafka_properties, named[0], 0, 1, 2)
    send_at(kafka_properties, named[1], 1.5, 3, partition=1)
    for reader in ("columnar", "spark"):
        end = IntervalEnd(at(1.2), datetime.now(UTC) + timedelta(days=1), {}, 10**6, reader)
        found = client.offsets(named[:2], end)
        assert found.wanted == {0: 2, 1_000_000: 0, 1_000_001: 0}


def test_records_of_several_topics_are_read_in_one_pass_and_carry_the_lines_partitions(kafka_properties, client, named):
    send(kafka_properties, named[0], 5)
    send(kafka_properties, named[2], 6, partitions=3)
    offsets = client.offsets(named)
    ranges = [offsets.range(p, 1, until) for p, until in offsets.stable.items() if until > 1]
    origins = {name: Origin(4, topic_id) for name, topic_id in offsets.topics.ids.items()}
    read: list[tuple[int, int]] = []
    with ColumnarSource(kafka_properties, origins).read(ranges) as reading:
        for batch in reading:
            read += zip(batch.column("_partition").to_pylist(), batch.column("_offset").to_pylist(), strict=True)
    expected = [(r.partition, offset) for r in ranges for offset in range(1, r.until_offset)]
    assert sorted(read) == sorted(expected)
    assert reading.reached == {r.place: r.until_offset for r in ranges}


def test_the_right_that_one_of_several_topics_lacks_is_named_with_it(guarded, bobs):
    topics = [made(guarded), made(guarded)]
    with granted(guarded, *ENOUGH, topic=topics[0]), Kafka(bobs) as client:
        assert f"does not grant user bob DESCRIBE on topic {topics[1]!r}" in refusal(lambda: client.offsets(topics))
        with granted(guarded, "DESCRIBE", topic=topics[1]):
            assert f"READ on topic {topics[1]!r}" in refusal(lambda: client.offsets(topics))
        with granted(guarded, "READ", topic=topics[1]):
            assert f"DESCRIBE_CONFIGS on topic {topics[1]!r}" in refusal(lambda: client.offsets(topics))
        # What the user may not see is none of the pattern's.
        pattern = spec_of(pattern="|".join(topics)).source
        assert client.offsets(pattern).topics.names == (topics[0],)


@pytest.mark.invariant("I11")
def test_a_line_of_several_topics_goes_on_and_shows_its_offsets_by_topic(
    ledger_url, kafka_properties, client, make_topic, named
):
    start = named[0].removesuffix("-eu")
    spec = spec_of(pattern=f"{start}-..")
    migrate(ledger_url, [spec])
    send(kafka_properties, named[0], 5)
    send(kafka_properties, named[1], 4, partitions=2)
    with Ledger(ledger_url) as ledger:
        driven = Driven(ledger, client, kafka_properties)
        driven.finish(spec, driven.begin(spec, "a"), "a")
        assert "several-" in mirror(ledger, spec, client)
        assert mirror(ledger, spec, client) is None
        joins = make_topic(1, f"{start}-mx")
        send(kafka_properties, joins, 3)
        (said,) = [
            f for check in checks(kafka_properties, ledger, [spec]) if check.code == "topic-id" for f in check.look()
        ]
        assert (said.severity, f"topic {joins} joins with the next run" in said.what) == (Severity.OK, True)
        begun = driven.begin(spec, "b")
        assert f"topic {joins} joins the line by join=earliest: {joins}-0 at 0" in begun.message
        driven.finish(spec, begun, "b")
        mirror(ledger, spec, client)
    shown = client.mirrored("ratchet-several", [*named, joins])
    assert shown == {
        (named[0], 0): 5,
        (named[1], 0): 2,
        (named[1], 1): 2,
        **{(named[2], p): 0 for p in range(3)},
        (joins, 0): 3,
    }
