"""A topic of Kafka in the suite that holds destinations to the port."""

from __future__ import annotations

import json

import pytest

from ratchet import KafkaTopic
from tests.ledger.destinations.conformance import Case, Conformance

from .sent import read


@pytest.mark.all
class TestKafkaTopic(Conformance):
    @pytest.fixture
    def case(self, kafka_properties, make_topic) -> Case:
        topic = make_topic(3)

        def rows(names) -> list[tuple]:
            found, last = [], {}
            for record in read(kafka_properties, topic):
                row = None if record.value is None else tuple(json.loads(record.value)[name] for name in names)
                # Of a key the last record counts.
                (found.append(row) if record.key is None else last.update({record.key: row}))
            return [*found, *(row for row in last.values() if row is not None)]

        return Case(KafkaTopic(topic), json.dumps(kafka_properties), rows)
