"""What the server answers: values as JSON, moments in UTC, and errors with their code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ratchet.errors import (
    BrokerUnreachable,
    Fenced,
    Halted,
    IllegalMove,
    LedgerUnreachable,
    Locked,
    NotRevisable,
    OtherCode,
    RatchetError,
    Refused,
    RegistryUnreachable,
    SettingsError,
    SpecError,
)
from ratchet.values.plain import plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_STATUS: Mapping[type[RatchetError], int] = {
    SpecError: 404,
    SettingsError: 400,
    LedgerUnreachable: 503,
    BrokerUnreachable: 503,
    RegistryUnreachable: 503,
    Locked: 503,
    Fenced: 409,
    IllegalMove: 409,
    OtherCode: 409,
    Refused: 409,
    Halted: 409,
    NotRevisable: 409,
}
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def document(value: DataclassInstance) -> dict[str, object]:
    """A value as JSON has it."""
    found = plain(asdict(value))
    assert isinstance(found, dict)
    return found


def answer(said: object) -> JSONResponse:
    """An answer that nobody keeps: who asks again sees what is so then."""
    return JSONResponse(said, headers=_HEADERS)


def failed(status: int, code: str | None, error: str, message: str) -> JSONResponse:
    """An error: its code, where it is one of ratchet's own, its class, and what a person reads of it."""
    return JSONResponse({"code": code, "error": error, "message": message}, status_code=status, headers=_HEADERS)


def of_ours(_: Request, error: Exception) -> JSONResponse:
    """An error of ratchet's own."""
    assert isinstance(error, RatchetError)
    status = next((number for kind, number in _STATUS.items() if isinstance(error, kind)), 500)
    return failed(status, error.code, type(error).__name__, str(error))


def of_access(_: Request, error: Exception) -> JSONResponse:
    """Of Airflow's checks, and of ours before a route."""
    assert isinstance(error, HTTPException)
    return failed(error.status_code, None, "Refused", str(error.detail))


def of_usage(_: Request, error: Exception) -> JSONResponse:
    """A request that is not as the description of the routes has it; values are not repeated."""
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return failed(422, None, "WrongUsage", said)
