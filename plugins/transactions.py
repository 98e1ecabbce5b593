"""Mounts the server of the Transactions page in Airflow's API server.

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
