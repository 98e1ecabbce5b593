"""Mounts the Transactions page in Airflow's API server, and shows it in Airflow's UI.

Airflow loads plugins in each of its processes; only the one that is asked for the page loads what answers.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin


async def page(scope: Any, receive: Any, send: Any) -> None:
    """The application, loaded by its first request, while the server answers others."""
    loaded = await asyncio.to_thread(import_module, "ratchet.page.app")
    await loaded.app(scope, receive, send)


class Transactions(AirflowPlugin):
    name = "ratchet"
    fastapi_apps = [{"app": page, "url_prefix": "/ratchet", "name": "ratchet"}]
    # Where Airflow's UI shows it: beside the DAGs, at each DAG and at each run.
    external_views = [
        {"name": "Transactions", "href": "/ratchet/", "url_route": "transactions", "destination": "nav"},
        {"name": "Transactions", "href": "/ratchet/#/{DAG_ID}", "url_route": "of_dag", "destination": "dag"},
        {
            "name": "Transaction",
            "href": "/ratchet/#/{DAG_ID}/runs/{RUN_ID}",
            "url_route": "of_run",
            "destination": "dag_run",
        },
    ]
