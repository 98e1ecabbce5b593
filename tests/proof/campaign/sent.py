"""The pipeline with destinations: how they are reached, what a person does after a restore, and what they have."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient

from ratchet import KafkaTopic
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.destination import DeclaredDestination
from tests.proof.faults.world import World
from tests.proof.witness.outside import Reach, unlike
from tests.until import until

from .line import GIVEN_UP, CampaignLine
from .producers import SENT, create_topics
from .record import SentRecord

DATABASE, CATALOG = "elsewhere", "lakehouse"
ATTACH_SECONDS, VERIFY_SECONDS = 300, 600
PARTITIONS = 2
FIRST = 20
"""How many differences of a destination are named."""


class SentLine(CampaignLine):
    """The pipeline `sent`, whose destinations are a database and a catalog of the stack's PostgreSQL, a topic of its
    Kafka, and directories. None of them goes back when a backup comes in place of the ledger.
    """

    def __init__(self, world: World, deployed: Path):
        (name,) = SENT
        super().__init__(name, world.stack, world.holds, deployed)
        self._url_there = world.stack.database_url(DATABASE)
        # Airflow's processes come by the proxy.
        self._by_proxy = re.sub(r":\d+/", f":{world.network.proxies['postgres'].port}/", self._url_there)
        self._warehouse = f"file://{world.holds}/warehouse"
        self._to_attach: dict[str, DeclaredDestination] = {}

    def ready(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            conn.execute(f"create database {DATABASE}")
        self._make_topics()
        at = psycopg.conninfo.conninfo_to_dict(self._by_proxy)
        login = {"host": at["host"], "port": int(at["port"]), "login": at["user"], "password": at["password"]}
        database = {"connection_id": DATABASE, "conn_type": "postgres", **login, "schema": DATABASE}
        extra = json.dumps(self._catalog(self._by_proxy))
        for said in (database, {"connection_id": CATALOG, "conn_type": "iceberg", "extra": extra}):
            self._ok(self._http.post("/connections", json=said))
        super().ready()

    def command(self, *said: str, seconds: float = 60, env: dict[str, str] | None = None) -> str:
        catalog = {"url": "", "extra": self._catalog(self._url_there)}
        reached = json.dumps({DATABASE: {"url": self._url_there}, CATALOG: catalog})
        by = {"RATCHET_CONNECTIONS": reached, "RATCHET_KAFKA": json.dumps(self._kafka)}
        return super().command(*said, seconds=seconds, env={**by, **(env or {})})

    # After a restore.

    def restored(self) -> None:
        super().restored()
        self._to_attach = {to.address: to for sink in self.spec.sinks for to in sink.destinations}

    def attach(self) -> str | None:
        """Attach one anew that may have steps of the ledger that is gone, as the docs tell people; None if none may.

        A topic that has records is made anew first.
        """
        for address, to in [*self._to_attach.items()]:
            if isinstance(to, KafkaTopic):
                self._remove(to.name)
                self._make_topics()
            self.command("attach", self.name, address, "--anew", "--reason", GIVEN_UP, seconds=ATTACH_SECONDS)
            del self._to_attach[address]
            return address
        return None

    # What they have.

    def is_drained(self) -> bool:
        return super().is_drained() and not self._behind()

    def sent(self) -> list[SentRecord]:
        """What each destination has, held against what readers see in the ledger's database."""
        by_psycopg = self._url_there.replace("postgresql:", "postgresql+psycopg:", 1)
        by = Reach(self._url, self._kafka, {DATABASE: self._url_there}, {CATALOG: self._catalog(by_psycopg)})
        found = []
        for sink in sinks_of(self.spec):
            for to in sink.destinations:
                other = unlike(sink, to, by)
                found.append(SentRecord(f"{sink.name} to {to.kind}", other.rows, len(other.said), other.said[:FIRST]))
        return found

    def counted(self) -> list[str]:
        """What `ratchet verify --destinations` has found, in a line; nothing where it finds nothing."""
        try:
            self.command("verify", self.name, "--destinations", seconds=VERIFY_SECONDS)
        except AssertionError as error:
            return [f"{self.name}: verify --destinations: {' '.join(str(error).split())}"]
        return []

    def _behind(self) -> bool:
        query = (
            "select from ratchet.destinations d join ratchet.pipelines p using (pipeline) "
            "where pipeline = %s and (d.step < p.step or d.detached_at is not null)"
        )
        return self._ledger.execute(query, [self.name]).fetchone() is not None

    def _make_topics(self) -> None:
        """Make those that are not there."""
        topics = [to.name for sink in self.spec.sinks for to in sink.destinations if isinstance(to, KafkaTopic)]
        create_topics(self._kafka, dict.fromkeys(topics, PARTITIONS))

    def _remove(self, topic: str) -> None:
        def is_gone() -> bool:
            with suppress(Exception):
                for removed in admin.delete_topics([topic]).values():
                    removed.result(30)
            return topic not in admin.list_topics(timeout=30).topics

        admin = AdminClient(dict(self._kafka))
        until(f"topic {topic} is gone", is_gone, 120)

    def _catalog(self, url: str) -> dict[str, str]:
        return {"type": "sql", "uri": url, "warehouse": self._warehouse}
