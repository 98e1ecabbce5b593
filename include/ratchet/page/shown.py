"""The page itself, as `web/` was built: for everybody, since it holds nothing and asks for all that it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

BUILT = Path(__file__).with_name("static")
FILES = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
_HEADERS = {
    # Airflow's UI shows it in a frame.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    # Its files have the same names in each version: a browser asks whether what it has is still so.
    "Cache-Control": "no-cache",
}


def router() -> APIRouter:
    """A route for each file, and for no other."""
    made = APIRouter(include_in_schema=False)
    for path, name in FILES.items():
        made.add_api_route(path, _shows(BUILT / name), response_class=FileResponse)
    return made


def _shows(file: Path) -> Callable[[], FileResponse]:
    def show() -> FileResponse:
        return FileResponse(file, headers=_HEADERS)

    return show
