"""A process that goes on with a pipeline's destinations and is killed at a point: `python -m tests.kafka.killed …`."""

from __future__ import annotations

import json
import os
import signal
import sys

from ratchet.destinations.kafka_producer import TransactionalProducer
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow
from tests.kafka.sent import Sent, spec_of

POINTS = "before the mark", "before the commit", "behind the commit"


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, properties: str, topic: str, point: str) -> None:
    if point == "before the mark":
        TransactionalProducer.put = killed
    elif point == "before the commit":
        TransactionalProducer.commit = killed
    else:
        commit = TransactionalProducer.commit
        TransactionalProducer.commit = lambda self: (commit(self), killed())
    with Ledger(url) as ledger:
        sent = Sent(ledger, json.loads(properties), spec_of(topic))
        follow(ledger, sent.spec, sent.opens)


if __name__ == "__main__":
    main(*sys.argv[1:])
