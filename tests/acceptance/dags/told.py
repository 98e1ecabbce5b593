"""A DAG that is scheduled by a sink of pipeline `warm`; it is paused until a test wants it."""

from typing import Any

from airflow.sdk import DAG, Asset, task

ROWS = Asset("x-ratchet://warm/sinks/warm_rows")

with DAG("told", schedule=[ROWS], is_paused_upon_creation=True):

    @task
    def see(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """What the events say that have started this run."""
        return [event.extra for event in triggering_asset_events[ROWS]]

    see()
