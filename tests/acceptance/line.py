"""A pipeline as a user has it: records in, runs by REST, rows and the ledger to look at."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError
from psycopg import sql
from psycopg.rows import namedtuple_row

from ratchet.begin import Begun, begin
from ratchet.kafka import Kafka
from ratchet.ledger import Ledger
from ratchet.transaction import Run

from .pipelines import warm

T = TypeVar("T")


def until(what: str, look: Callable[[], T | None], seconds: float = 60) -> T:
    """What `look` gives as soon as it is true; fails with `what` at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)


class Line:
    """One pipeline of the stack; its topic, its DAG and its tables begin with its name."""

    def __init__(self, name: str, ledger_url: str, kafka: dict[str, str], airflow_url: str, holds: Path):
        self.name, self.holds = name, holds
        self._url, self._kafka, self._servers = ledger_url, kafka, kafka["bootstrap.servers"]
        self._ledger = psycopg.connect(ledger_url, autocommit=True, row_factory=namedtuple_row)
        self._http = httpx.Client(base_url=f"{airflow_url}/api/v2", timeout=30)
        self._runs = 0

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.close()
        self._http.close()

    def reset(self) -> None:
        """The topic and the DAG are there, no run is active, and every transaction is finished."""
        for file in self.holds.glob(f"{self.name}.*"):
            file.unlink()
        self._create_topic()
        self.find_dag()
        until("no run is active", lambda: not self.active(), 120)
        if self.unfinished():
            until("an unfinished transaction is finished", self._finish, 120)

    def find_dag(self) -> None:
        """Wait until Airflow has parsed the DAG."""
        until(f"Airflow has DAG {self.name}", lambda: self._http.get(f"/dags/{self.name}").is_success, 90)

    def publish(self, count: int) -> None:
        """Append so many records to partition 0; `v` is what the topic held before."""
        producer = KafkaProducer(bootstrap_servers=self._servers)
        for number in range(count):
            value = json.dumps({"k": f"key {number % 7}", "v": number}).encode()
            producer.send(self.name, value, partition=0)
        producer.flush()
        producer.close()

    # Runs, through Airflow's REST API.

    def trigger(self, **conf: Any) -> str:
        """Start a run; its id."""
        self._runs += 1
        run_id = f"test_{time.time_ns()}_{self._runs}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        self._ok(self._http.post(f"/dags/{self.name}/dagRuns", json=body))
        return run_id

    def clear(self, run_id: str) -> None:
        """Clear the whole run."""
        self._ok(self._http.post(f"{self._run(run_id)}/clear", json={"dry_run": False, "only_failed": False}))

    def mark_failed(self, run_id: str) -> None:
        """What a person does with the button: Airflow stops the run's tasks."""
        self._ok(self._http.patch(self._run(run_id), json={"state": "failed"}))

    def ended(self, run_id: str, seconds: float = 120) -> str:
        """The state in which a run ends."""
        return until(f"run {run_id} ends", lambda: self._ended(run_id), seconds)

    def task(self, run_id: str, task_id: str, state: str, seconds: float = 60) -> dict[str, Any]:
        """Wait until one of the run's tasks of this name is in this state."""

        def look() -> dict[str, Any] | None:
            return next((t for t in self.tasks(run_id) if t["task_id"] == task_id and t["state"] == state), None)

        return until(f"{task_id} of {run_id} is {state}", look, seconds)

    def tasks(self, run_id: str) -> list[dict[str, Any]]:
        """The run's task instances."""
        return self._ok(self._http.get(f"{self._run(run_id)}/taskInstances")).json()["task_instances"]

    def states(self, run_id: str) -> dict[str, str]:
        """The state of each task; a mapped one by `process 0`, `process 1`."""
        return {
            t["task_id"] if t["map_index"] < 0 else f"{t['task_id']} {t['map_index']}": t["state"]
            for t in self.tasks(run_id)
        }

    def log(self, run_id: str, task_id: str, map_index: int = -1, attempt: int = 1) -> str:
        """All that a try of a task wrote, as Airflow shows it."""
        path = f"{self._run(run_id)}/taskInstances/{task_id}/logs/{attempt}"
        return self._ok(self._http.get(path, params={"map_index": map_index, "full_content": True})).text

    def rendered(self, run_id: str) -> str:
        """What Airflow shows of its tasks' arguments."""
        return json.dumps([t.get("rendered_fields") for t in self.tasks(run_id)])

    def active(self) -> list[str]:
        """The runs that Airflow has as queued or running."""
        said = self._ok(
            self._http.get(f"/dags/{self.name}/dagRuns", params={"state": ["queued", "running"], "limit": 100})
        )
        return [run["dag_run_id"] for run in said.json()["dag_runs"]]

    # Holds, which the transform obeys.

    def hold(self) -> None:
        """Make the next job that starts wait."""
        (self.holds / f"{self.name}.hold").touch()

    def held(self) -> int:
        """Wait until a job has taken the hold; its process id."""
        found = until("a job is held", lambda: next(self.holds.glob(f"{self.name}.held.*"), None), 90)
        return int(found.suffix[1:])

    def release(self) -> None:
        """Let the held job go on."""
        for file in self.holds.glob(f"{self.name}.held.*"):
            file.unlink()

    def fail(self, whether: bool) -> None:
        """Make every job's transform raise, or not."""
        file = self.holds / f"{self.name}.fail"
        file.touch() if whether else file.unlink()

    # The ledger and the tables.

    def head(self) -> int:
        row = self._ledger.execute("select head from ratchet.pipelines where pipeline = %s", [self.name]).fetchone()
        return row.head if row else 0

    def transaction(self, run_id: str) -> Any:
        """The transaction that a run was bound to last, as the ledger has it now; None before it began."""
        return self._ledger.execute(
            "select t.*, t.lease_until < clock_timestamp() as lease_ran_out from ratchet.transactions t "
            "join ratchet.runs r using (pipeline, txid, revision) where r.dag_id = %s and r.run_id = %s "
            "order by r.clear_number desc limit 1",
            [self.name, run_id],
        ).fetchone()

    def begin_as(self, run_id: str) -> int:
        """Take a transaction as a run that Airflow does not have, as if it had been deleted; the txid."""
        spec = warm.PIPELINE
        with Ledger(self._url) as ledger, Kafka(self._kafka) as kafka:
            begun = begin(
                ledger, spec, Run(self.name, run_id), lambda: kafka.offsets(spec.source.name), lambda *_: True
            )
        assert isinstance(begun, Begun), begun
        return begun.claim.txid

    def unfinished(self) -> int:
        query = (
            "select count(*) as n from ratchet.transactions "
            "where pipeline = %s and state not in ('COMMITTED', 'VOIDED')"
        )
        return self._ledger.execute(query, [self.name]).fetchone().n

    def tries(self, txid: int) -> dict[int, int]:
        """slice → tries taken in the transaction's present epoch."""
        rows = self._ledger.execute(
            "select slice, try_number from ratchet.slices join ratchet.transactions using (pipeline, txid, epoch) "
            "where pipeline = %s and txid = %s",
            [self.name, txid],
        )
        return {row.slice: row.try_number for row in rows}

    def slice_names(self, txid: int) -> dict[int, str]:
        """slice → its name, made here from the ranges in the ledger."""
        rows = self._ledger.execute(
            "select slice, ranges from ratchet.slices where pipeline = %s and txid = %s", [self.name, txid]
        )
        return {
            row.slice: ", ".join(f"{self.name}-{partition} [{first},{until})" for partition, first, until in row.ranges)
            for row in rows
        }

    def commits(self) -> list[int]:
        """The txids in the order in which history has them committed."""
        rows = self._ledger.execute(
            "select txid from ratchet.events where pipeline = %s and move = 'COMMITTED' order by id", [self.name]
        )
        return [row.txid for row in rows]

    def positions(self) -> Counter[tuple[int, int]]:
        """The multiset of (partition, offset) in the Append sink."""
        table = sql.Identifier(f"{self.name}_rows")
        rows = self._ledger.execute(sql.SQL("select _partition, _offset from {}").format(table))
        return Counter((row[0], row[1]) for row in rows)

    def expected(self) -> Counter[tuple[int, int]]:
        """The multiset of everything below the last committed offset."""
        row = self._ledger.execute(
            "select max(until_offset) as until from ratchet.ranges join ratchet.pipelines using (pipeline) "
            "where pipeline = %s and txid <= head",
            [self.name],
        ).fetchone()
        return Counter((0, offset) for offset in range(row.until or 0))

    def _run(self, run_id: str) -> str:
        return f"/dags/{self.name}/dagRuns/{run_id}"

    def _ended(self, run_id: str) -> str | None:
        state = self._ok(self._http.get(self._run(run_id))).json()["state"]
        return state if state in ("success", "failed") else None

    def _finish(self) -> bool:
        self.ended(self.trigger())
        return not self.unfinished()

    def _create_topic(self) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self._servers)
        try:
            admin.create_topics([NewTopic(self.name, num_partitions=1, replication_factor=1)])
        except TopicAlreadyExistsError:
            pass
        finally:
            admin.close()

    @staticmethod
    def _ok(answer: httpx.Response) -> httpx.Response:
        assert answer.is_success, f"{answer.request.url}: {answer.status_code} {answer.text}"
        return answer
