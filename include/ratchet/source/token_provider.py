"""Tokens for logins by OAUTHBEARER: asked for at the endpoint, kept for a while, shared by a process's connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

import requests
from kafka.net.sasl.oauth import AbstractTokenProvider
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from ratchet.errors import BrokerUnreachable, SettingsError
from ratchet.source.tokens import AUTHORITY, CLIENT_ID, CLIENT_SECRET, ENDPOINT, SCOPE, Grant
from ratchet.values.unfit import excerpt

LIMITS = (5, 10)
"""Seconds to connect to the endpoint, and to wait for each part of its answer."""
RETRY_SECONDS = 15
_USED = 0.8
"""The part of its time for which a token is used, as Kafka's clients have it; then there is a newer one."""


@dataclass(frozen=True)
class _Token:
    text: str
    until: float
    """By this process' monotonic clock, to be used before that."""


_kept: dict[Grant, _Token] = {}
_asking = Lock()


class Tokens(AbstractTokenProvider):
    """The tokens of a grant, one at a time for all connections of a process.

    `token` raises SettingsError where the endpoint refuses the client, BrokerUnreachable where it does not answer.
    """

    def __init__(self, by: Grant):
        super().__init__()
        self.by = by

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A token that may be used now."""
        with _asking:
            kept = _kept.get(self.by)
            if kept is None or kept.until <= monotonic():
                kept = _kept[self.by] = _asked(self.by)
            return kept.text

    def extensions(self) -> dict[str, str]:
        return dict(self.by.extensions)


class _NotNow(Exception):
    """The endpoint says that it cannot answer at present."""


def _asked(by: Grant) -> _Token:
    parts = urlsplit(by.endpoint)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    form = {"grant_type": "client_credentials", **({"scope": by.scope} if by.scope else {})}

    def answer() -> requests.Response:
        found = requests.post(
            by.endpoint, form, auth=(by.client_id, by.secret), timeout=LIMITS, verify=by.authority or True
        )
        if found.status_code == 429 or found.status_code >= 500:
            raise _NotNow(f"it answers {found.status_code} {found.reason}")
        return found

    passing = (requests.ConnectionError, requests.Timeout, _NotNow)
    retrying = Retrying(
        retry=retry_if_exception_type(passing),
        stop=stop_after_delay(RETRY_SECONDS),
        wait=wait_random_exponential(0.2, max=3),
        reraise=True,
    )
    before = monotonic()
    try:
        found = retrying(answer)
    except requests.exceptions.SSLError as error:
        raise SettingsError(
            f"TLS to the token endpoint {shown} fails: {excerpt(str(error))}; name the file of its authority as "
            f"{AUTHORITY}"
        ) from error
    except passing as error:
        raise BrokerUnreachable(
            f"no token for Kafka from {shown} ({excerpt(str(error))}); check that it runs and that {ENDPOINT} is right"
        ) from error
    except (requests.RequestException, OSError, ValueError) as error:
        raise SettingsError(
            f"the token endpoint {shown} cannot be asked: {excerpt(str(error))}; correct {ENDPOINT} or {AUTHORITY}"
        ) from error
    return _read(found, shown, by, before)


def _read(found: requests.Response, shown: str, by: Grant, before: float) -> _Token:
    try:
        said: Any = found.json()
    except ValueError:
        said = None
    of = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    text, lasts = of.get("access_token"), of.get("expires_in")
    if found.status_code != 200 or not isinstance(text, str):
        why = " ".join(str(of[name]) for name in ("error", "error_description") if name in of)
        raise SettingsError(
            f"the token endpoint {shown} gives client {by.client_id} no token: it answers {found.status_code} "
            f"{found.reason}{': ' + excerpt(why) if why else ''}; correct {ENDPOINT}, {CLIENT_ID} and {CLIENT_SECRET}, "
            f"or {SCOPE}"
        )
    try:
        seconds = float(lasts)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        # For how long nobody says: this connection has it alone.
        seconds = 0.0
    return _Token(text, before + _USED * seconds)


def user_of(settings: Mapping[str, Any]) -> str | None:
    """Who logs in by the settings of kafka-python's clients, where they say so."""
    asks = settings.get("sasl_oauth_token_provider")
    return asks.by.client_id if isinstance(asks, Tokens) else settings.get("sasl_plain_username")
