"""The runs of a pipeline's DAG, as a person has them: through Airflow's REST API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx

from tests.until import until

MAINTENANCE = "maintenance"
LASTING_DAGS = {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60"}
"""For an Airflow whose DAG files nobody changes: read each quarter of a minute, they took a third of what it takes."""


class Runs:
    """The runs of one DAG; every call fails with Airflow's own words if Airflow refuses."""

    def __init__(self, name: str, airflow_url: str):
        self.name = name
        self._http = httpx.Client(base_url=f"{airflow_url}/api/v2", timeout=60)
        self._triggered = 0

    def find_dag(self, dag_id: str | None = None) -> None:
        """Wait until Airflow has parsed the DAG."""
        path = f"/dags/{dag_id or self.name}"
        until(f"Airflow has {path}", lambda: self._http.get(path).is_success, 90)

    def pause(self, paused: bool, dag_id: str | None = None) -> None:
        self._ok(self._http.patch(f"/dags/{dag_id or self.name}", json={"is_paused": paused}))

    def trigger(self, **conf: Any) -> str:
        """Start a run; its id."""
        self._triggered += 1
        run_id = f"test_{time.time_ns()}_{self._triggered}"
        self.make(run_id, **conf)
        return run_id

    def make(self, run_id: str, **conf: Any) -> None:
        """Start a run with this id."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        self._ok(self._http.post(f"/dags/{self.name}/dagRuns", json=body))

    def clear(self, run_id: str) -> None:
        """Clear the whole run."""
        self._ok(self._http.post(f"{self._run(run_id)}/clear", json={"dry_run": False, "only_failed": False}))

    def clear_task(self, run_id: str, task: str | list, downstream: bool) -> None:
        """Clear one task of the run, or one mapped task, `["process", 1]`; and what follows it, as the UI offers."""
        body = {"dag_run_id": run_id, "task_ids": [task], "include_downstream": downstream}
        body |= {"dry_run": False, "only_failed": False}
        self._ok(self._http.post(f"/dags/{self.name}/clearTaskInstances", json=body))

    def mark(self, run_id: str, state: str) -> None:
        """What a person does with the button, `success` or `failed`: Airflow stops the run's tasks."""
        self._ok(self._http.patch(self._run(run_id), json={"state": state}))

    def mark_failed(self, run_id: str) -> None:
        self.mark(run_id, "failed")

    def delete(self, run_id: str) -> bool:
        """Delete the run; False if Airflow refuses, as it does while the run is running."""
        answer = self._http.delete(self._run(run_id))
        return answer.status_code != 409 and bool(self._ok(answer))

    def backfill(self, first: datetime, last: datetime, *, reprocess: str = "none", backwards: bool = False) -> None:
        """Have Airflow run the intervals that begin from `first` to `last`, one after the other, and wait for it."""
        body = {"dag_id": self.name, "from_date": first.isoformat(), "to_date": last.isoformat(), "max_active_runs": 1}
        body |= {"reprocess_behavior": reprocess, "run_backwards": backwards}
        made = self._ok(self._http.post("/backfills", json=body)).json()["id"]
        until("the backfill's runs have ended", lambda: not self.active(), 180)
        # Airflow looks only every half minute whether one is complete, and allows no other before.
        answer = self._http.put(f"/backfills/{made}/cancel")
        assert answer.status_code == 409 or self._ok(answer)

    @contextmanager
    def maintained(self) -> Iterator[None]:
        """While the block lasts, the maintenance DAG runs every minute, as it does for users."""
        self.pause(False, MAINTENANCE)
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        """Pause the maintenance DAG when it has nothing to do."""
        for paused in (False, True):
            # Of a DAG that is paused, Airflow looks only every minute whether a run has ended.
            self.pause(paused, MAINTENANCE)
            until("maintenance is done", lambda: not self.active(MAINTENANCE, "running"), 240)

    def maintain(self) -> str:
        """Have maintenance done once more, and wait for it; what its task wrote of this pipeline."""
        run_id = f"test_{time.time_ns()}"
        body = {"dag_run_id": run_id, "logical_date": None}
        self._ok(self._http.post(f"/dags/{MAINTENANCE}/dagRuns", json=body))
        path = f"/dags/{MAINTENANCE}/dagRuns/{run_id}/taskInstances/upkeep_0"
        ended = ("success", "failed")
        until("maintenance is done", lambda: self._ok(self._http.get(path)).json()["state"] in ended, 90)
        log = self._ok(self._http.get(f"{path}/logs/1", params={"full_content": True})).json()["content"]
        mine = (e for e in log if e.get("pipeline") == self.name or f"{self.name}:" in e["event"])
        return "\n".join(f"{e.get('pipeline')}: {e['event']}" for e in mine)

    def ended(self, run_id: str, seconds: float = 120) -> str:
        """The state in which a run ends."""
        return until(f"run {run_id} ends", lambda: self._ended(run_id), seconds)

    def task(self, run_id: str, task_id: str, state: str, seconds: float = 120) -> dict[str, Any]:
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

    def tried(self, run_id: str, task_id: str) -> list[int]:
        """How often Airflow has tried the task, each mapped one."""
        return [t["try_number"] for t in self.tasks(run_id) if t["task_id"] == task_id]

    def last_log(self, run_id: str, task_id: str) -> str:
        """What the latest try of a task, of the first where it is mapped, wrote."""
        (found, *_) = sorted((t for t in self.tasks(run_id) if t["task_id"] == task_id), key=lambda t: t["map_index"])
        return self.log(run_id, task_id, found["map_index"], found["try_number"])

    def log(self, run_id: str, task_id: str, map_index: int = -1, attempt: int = 1) -> str:
        """All that a try of a task wrote, as Airflow shows it."""
        path = f"{self._run(run_id)}/taskInstances/{task_id}/logs/{attempt}"
        return self._ok(self._http.get(path, params={"map_index": map_index, "full_content": True})).text

    def asked_by(self, run_id: str) -> str:
        """What the events of assets say that have started the run."""
        return self._ok(self._http.get(f"{self._run(run_id)}/upstreamAssetEvents")).text

    def returned(self, dag_id: str, task_id: str) -> list[dict[str, Any]]:
        """What this task of all successful runs of another DAG has returned, one after the other."""
        asked = {"limit": 100, "state": "success", "order_by": "run_after"}
        runs = self._ok(self._http.get(f"/dags/{dag_id}/dagRuns", params=asked)).json()["dag_runs"]
        found = []
        for run in runs:
            path = f"/dags/{dag_id}/dagRuns/{run['dag_run_id']}/taskInstances/{task_id}/xcomEntries/return_value"
            found += self._ok(self._http.get(path, params={"deserialize": True})).json()["value"]
        return found

    def watchers(self) -> list[dict[str, Any]]:
        """What Airflow's triggerer watches for, to start runs of the pipeline."""
        asked = {"uri_pattern": f"x-ratchet://{self.name}/arrivals"}
        (asset,) = self._ok(self._http.get("/assets", params=asked)).json()["assets"]
        return asset["watchers"]

    def rendered(self, run_id: str) -> str:
        """What Airflow shows of its tasks' arguments."""
        return json.dumps([t.get("rendered_fields") for t in self.tasks(run_id)])

    def active(self, dag_id: str | None = None, *states: str) -> list[str]:
        """The runs that Airflow has as queued or running."""
        asked = {"state": list(states) or ["queued", "running"], "limit": 100}
        said = self._ok(self._http.get(f"/dags/{dag_id or self.name}/dagRuns", params=asked))
        return [run["dag_run_id"] for run in said.json()["dag_runs"]]

    def runs(self, prefix: str) -> list[str]:
        """Every run whose id begins so, in the order of their intervals."""
        said = self._ok(self._http.get(f"/dags/{self.name}/dagRuns", params={"limit": 100, "order_by": "logical_date"}))
        return [run["dag_run_id"] for run in said.json()["dag_runs"] if run["dag_run_id"].startswith(prefix)]

    def _run(self, run_id: str) -> str:
        return f"/dags/{self.name}/dagRuns/{run_id}"

    def _ended(self, run_id: str) -> str | None:
        state = self._ok(self._http.get(self._run(run_id))).json()["state"]
        return state if state in ("success", "failed") else None

    @staticmethod
    def _ok(answer: httpx.Response) -> httpx.Response:
        assert answer.is_success, f"{answer.request.url}: {answer.status_code} {answer.text}"
        return answer
