"""Who may see and do what: Airflow's users, its permissions for a pipeline's DAG, and no request of another site.

A mounted application inherits no check of Airflow's: each route here names its own. Airflow knows a browser by a
cookie, which other sites' requests may carry as well, so whatever changes anything is asked for with a header that no
other site can send without leave, and from the page's own origin.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request

HEADER = "X-Ratchet"
"""A request that changes anything carries it, with any value: a form or a link of another site cannot."""

User = Annotated[BaseUser, Depends(get_user)]
"""The user of a request; 401 where there is none."""
MAY_READ = Depends(requires_access_dag("GET"))
"""403 where the user may not read the DAG that the path names."""
MAY_MOVE = Depends(requires_access_dag("PUT", DagAccessEntity.RUN))
"""403 where the user may not change runs of the DAG that the path names, as for a clear."""


def readable(user: BaseUser, names: Collection[str]) -> set[str]:
    """Those of these pipelines whose DAGs the user may read."""
    return _may(user, names, "GET")


def editable(user: BaseUser, names: Collection[str]) -> set[str]:
    """Those of these pipelines whose DAGs the user may change, so that moves are worth offering."""
    return _may(user, names, "PUT")


def _may(user: BaseUser, names: Collection[str], method: ResourceMethod) -> set[str]:
    teams: dict[str | None, set[str]] = {}
    of = DagModel.get_dag_id_to_team_name_mapping(list(names))
    for name in names:
        teams.setdefault(of.get(name), set()).add(name)
    manager = get_auth_manager()
    return {
        name
        for team, mine in teams.items()
        for name in manager.filter_authorized_dag_ids(dag_ids=mine, user=user, method=method, team_name=team)
    }


def own_site(request: Request) -> None:
    """403 for a request that another site may have made, 415 for one that is not JSON."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "the request comes from another site")
    origin = request.headers.get("origin")
    if origin is not None and origin not in _own_origins(request):
        raise HTTPException(403, f"the request comes from {origin}, which is not this site")
    if HEADER not in request.headers:
        raise HTTPException(403, f"a request that changes anything has a header {HEADER}")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body is not application/json")


def _own_origins(request: Request) -> set[str]:
    """As a browser names this site: by the address that it asked, or by Airflow's own, where a proxy stands before."""
    asked = f"{request.url.scheme}://{request.url.netloc}"
    base = urlsplit(conf.get("api", "base_url", fallback=""))
    return {asked, f"{base.scheme}://{base.netloc}"} if base.netloc else {asked}


OWN_SITE = Depends(own_site)
