"""The application that Airflow's API server mounts."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ratchet.errors import RatchetError
from ratchet.page import moves, reads, shown
from ratchet.page.access import User
from ratchet.page.answers import answer, of_access, of_ours, of_usage
from ratchet.page.pipelines import Pipelines


def make() -> FastAPI:
    """A new application; it knows pipelines once it is asked for one."""
    # Its own pages of documentation would answer anybody.
    app = FastAPI(title="ratchet", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.pipelines = Pipelines()

    @app.get("/api/openapi.json", include_in_schema=False)
    def description(_: User) -> JSONResponse:
        """The description of the routes, for whoever Airflow knows."""
        return answer(app.openapi())

    app.include_router(reads.router)
    app.include_router(moves.router)
    app.include_router(shown.router())
    app.add_exception_handler(RatchetError, of_ours)
    app.add_exception_handler(HTTPException, of_access)
    app.add_exception_handler(RequestValidationError, of_usage)
    return app


app = make()
