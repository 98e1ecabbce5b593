"""Values whose schemas a registry knows, in Spark's workers; and a registry that is lost on the way."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest

from ratchet import Append, Avro, Json, Pipeline, Protobuf, Topic
from ratchet.errors import RegistryUnreachable, is_outage
from ratchet.spark.servers import Servers
from ratchet.spark.slice import run_slice
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.apicurio import Apicurio
from tests.formats import wireformat
from tests.formats.test_registry import CONNECTION, framed

from .rig import SINK, address, content, every

pytestmark = pytest.mark.all

ONE = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
TWO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
KEY = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}


@pytest.fixture(scope="module")
def registry(scratch):
    with Apicurio(scratch / f"registry-{uuid4().hex[:6]}") as running:
        yield running


def spec_of(topic: str, transform=None, **given) -> Pipeline:
    return Pipeline(
        name="p",
        source=Topic(topic, value=Avro("a int, b string", registry=CONNECTION), **given),
        transform=address(transform) if transform else None,
        sinks=[Append(SINK, columns="a int, b string")],
        max_records=1_000,
        slice_records=10,
    )


def ran(rig, registry, spec, work):
    servers = Servers(rig.kafka, {CONNECTION: registry.endpoint})
    vote = run_slice(rig.spark, spec, work, rig.ledger.url, servers)
    rig.check(spec, work, vote)
    return vote


@pytest.mark.parametrize("transform", [None, every])
def test_both_lanes_read_what_a_registry_knows(rig, registry, transform):
    topic, subject = rig.topic(), f"both-{uuid4().hex[:6]}"
    one, two = registry.register(subject, ONE), registry.register(subject, TWO | {"doc": subject})
    key = registry.register(f"{subject}-key", KEY, "JSON")
    values = [framed(one, ONE, {"a": n}) for n in range(3)] + [framed(two, TWO, {"a": n, "b": "x"}) for n in range(3)]
    values += [framed(one, ONE, {"a": 9}) + b"\x00", framed(99_999, ONE, {"a": 9})]
    rig.send(topic, *values, keys=[framed(key, None, {"k": n}) for n in range(len(values))])
    spec = spec_of(topic, transform, key=Json("k int", registry=CONNECTION))
    (work,) = rig.begin(spec)
    ran(rig, registry, spec, work)
    rows = rig.written(work, SINK)
    assert Counter((r["a"], r["b"]) for r in rows) == Counter([(n, b) for n in range(3) for b in (None, "x")])
    dead = sorted((r["_offset"], r["error"]) for r in rig.written(work, DEAD_LETTERS))
    assert [offset for offset, _ in dead] == [6, 7]
    assert "bytes behind its end" in dead[0][1] and "schema 99999 is not in the registry" in dead[1][1]


def test_workers_read_messages_of_protobuf_by_what_a_registry_knows(rig, registry):
    topic, subject = rig.topic(), f"protobuf-{uuid4().hex[:6]}"
    town = 'syntax = "proto3"; package x; message Town { string name = 1; }'
    order = f"""syntax = "proto3"; import "{subject}.proto"; message Order {{ int32 a = 1; x.Town at = 2; }}
    message Other {{ int32 a = 3; }}"""
    registry.register(f"{subject}-town", town, "PROTOBUF")
    references = ({"name": f"{subject}.proto", "subject": f"{subject}-town", "version": 1},)
    front = b"\x00" + registry.register(subject, order, "PROTOBUF", references).to_bytes(4, "big")
    message = wireformat.number(1, 7) + wireformat.sized(2, wireformat.text(1, "Ulm"))
    rig.send(topic, front + b"\x00" + message, front + b"\x02\x02" + wireformat.number(3, 8), front + b"\x00\x08")
    spec = Pipeline(
        name="p",
        source=Topic(topic, value=Protobuf("a int, b string from at.name", registry=CONNECTION)),
        sinks=[Append(SINK, columns="a int, b string")],
    )
    (work,) = rig.begin(spec)
    ran(rig, registry, spec, work)
    assert Counter((r["a"], r["b"]) for r in rig.written(work, SINK)) == Counter([(7, "Ulm"), (8, None)])
    (dead,) = rig.written(work, DEAD_LETTERS)
    assert dead["_offset"] == 2 and "no Order by schema" in dead["error"] and "ends too early" in dead["error"]


def test_a_registry_that_is_killed_is_an_outage_and_the_slice_goes_on_after_it(rig, registry):
    topic, subject = rig.topic(), f"killed-{uuid4().hex[:6]}"
    one, two = registry.register(subject, ONE | {"doc": subject}), registry.register(subject, TWO | {"doc": subject})
    rig.send(topic, *(framed(one, ONE, {"a": n}) for n in range(10)))
    rig.send(topic, *(framed(two, TWO, {"a": n, "b": "x"}) for n in range(10, 20)))
    spec = spec_of(topic)
    first, second = rig.begin(spec)
    ran(rig, registry, spec, first)
    registry.kill()
    try:
        with pytest.raises(RegistryUnreachable, match="orders_registry.*does not answer: .*refused") as said:
            ran(rig, registry, spec, second)
        assert is_outage(said.value)
        assert content(rig.written(second, SINK)) == Counter((0, n, n) for n in range(10)), "the first slice's alone"
    finally:
        registry.start()
    again = rig.retry(spec, second.token.slice)
    ran(rig, registry, spec, again)
    assert content(rig.written(again, SINK)) == Counter((0, n, n) for n in range(20))
