"""Every route of the page's server asks who is there, and every one that changes anything whether it is the page."""

from __future__ import annotations

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from ratchet.page.access import MAY_MOVE, MAY_READ, own_site
from ratchet.page.app import make
from ratchet.page.shown import FILES

ROUTES = [route for route in make().routes if getattr(route, "path", None) not in FILES]
OF_NO_PIPELINE = {"/api/pipelines", "/api/lag", "/api/openapi.json"}
"""What these give is cut to what the user may read."""


def asks(of: Dependant) -> set[object]:
    """All that is called before a route, also for what is called before it."""
    return {of.call}.union(*map(asks, of.dependencies))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_a_route_asks_who_may_do_what_it_does(route):
    assert isinstance(route, APIRoute), "another application, mounted here, would ask nobody"
    asked = asks(route.dependant)
    assert get_user in asked
    if route.methods == {"POST"}:
        assert {own_site, MAY_MOVE.dependency} <= asked
        assert route.path.startswith("/api/pipelines/{dag_id}/moves/")
    else:
        assert route.methods == {"GET"}
        assert MAY_READ.dependency in asked or route.path in OF_NO_PIPELINE
