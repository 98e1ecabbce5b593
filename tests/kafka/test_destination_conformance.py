"""Topics of Kafka in the suite that holds destinations to the port."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO

import pytest
from fastavro import schemaless_reader

from ratchet import KafkaTopic
from tests.formats.test_registry import answering
from tests.ledger.destinations.conformance import Case, Conformance

from .sent import read


def rows_of(properties: dict[str, str], topic: str, value_of: Callable[[bytes], dict]) -> Callable[..., list[tuple]]:
    """The rows that a topic has, by names; of a key the last record counts."""

    def rows(names: Sequence[str]) -> list[tuple]:
        found, last = [], {}
        for record in read(properties, topic):
            row = None if record.value is None else tuple(value_of(record.value)[name] for name in names)
            (found.append(row) if record.key is None else last.update({record.key: row}))
        return [*found, *(row for row in last.values() if row is not None)]

    return rows


@pytest.mark.all
class TestKafkaTopic(Conformance):
    @pytest.fixture
    def case(self, kafka_properties, make_topic) -> Case:
        topic = make_topic(3)
        return Case(KafkaTopic(topic), json.dumps(kafka_properties), rows_of(kafka_properties, topic, json.loads))


@pytest.mark.all
class TestAvroTopic(Conformance):
    @pytest.fixture
    def case(self, kafka_properties, make_topic) -> Iterator[Case]:
        topic = make_topic(3)
        to = KafkaTopic(topic, format="avro", registry="r")
        with answering((200, {"id": 1})) as server:

            def value_of(value: bytes) -> dict:
                return schemaless_reader(BytesIO(value[5:]), json.loads(server.sent[-1]["schema"]), None)

            of = rows_of(kafka_properties, topic, value_of)
            yield Case(to, json.dumps(kafka_properties), of, registries={"r": server.endpoint})
