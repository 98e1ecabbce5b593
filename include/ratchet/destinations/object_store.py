"""An object store with the interface of Amazon S3: a place in it, and the access that an Airflow connection gives.

Options have the names of the Rust library object_store, which delta-rs and obstore are built on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

from ratchet.errors import SettingsError

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

EXAMPLE = '{"url": "https://HOST:9000", "login": "ACCESS_KEY_ID", "password": "…", "extra": {"region_name": "…"}}'
"""A store among the endpoints that a command is given, where no Airflow is asked."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY = re.compile(r"[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*")
"""Characters that every client and tool writes in one way."""
_KEY_BYTES = 700
"""S3 allows 1,024 for a whole key; the rest is for what lies below."""
_TAKEN = "aws_session_token, config_kwargs, endpoint_url, region_name, service_config, verify"
_TOKENS = ("aws_session_token", "aws_token", "session_token", "token")
"""What delta-rs takes for a session's token, in whichever case, from the environment too."""
_REGION = "us-east-1"
"""What stores of others than Amazon go by where nothing is said."""
SECONDS, CONNECT_SECONDS = 30, 5
"""That one request, and a connection, may take."""
RETRIES, RETRY_SECONDS = 10, 30
"""So often, and for so long, a request is tried again: a store that is away is told within a minute or so."""


@dataclass(frozen=True)
class ObjectStore:
    """A place in a bucket, and how it is reached. Its repr shows no option: some are secrets."""

    bucket: str
    prefix: str
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def at(cls, name: str, by: str) -> ObjectStore:
        """The place that a destination names, by `options_of` as JSON; SettingsError where the environment has what
        the libraries would mix with them.
        """
        bucket, prefix = place_of(name)
        options = json.loads(by)
        if "aws_access_key_id" in options and "aws_session_token" not in options:
            for variable in os.environ:
                if variable.lower() in _TOKENS:
                    raise SettingsError(
                        f"{name}: its connection has a login without a session's token, and the one in the environment "
                        f"variable {variable} would be added to it; unset that where it runs, or leave the login out"
                    )
        return cls(bucket, prefix, options)

    def connected(self) -> S3Store:
        """The place by obstore."""
        from obstore.store import S3Store

        # The keys are checked when they are used.
        config = cast("S3Config", dict(self.options))
        return S3Store(
            self.bucket,
            prefix=self.prefix,
            config=config,
            client_options={"timeout": f"{SECONDS}s", "connect_timeout": f"{CONNECT_SECONDS}s"},
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        )

    def compares(self) -> bool:
        """Whether the store refuses to put an object over one that is there, as a request can ask; obstore's errors.

        Puts an empty object below the place, and deletes it. That several puts at once are told apart too no answer
        shows.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError

        store, key = self.connected(), f"_ratchet/{uuid4().hex}"
        try:
            obstore.put(store, key, b"", mode="create")
            obstore.put(store, key, b"", mode="create")
            compares = False
        except AlreadyExistsError:
            compares = True
        # It is empty, and not everybody may delete.
        with suppress(BaseError):
            obstore.delete(store, key)
        return compares

    @property
    def url(self) -> str:
        """As delta-rs and others name the place."""
        return f"s3://{self.bucket}/{self.prefix}"


def is_in_store(name: str) -> bool:
    """Whether the name of a destination is that of a place in an object store, of whichever kind."""
    return "://" in name


def check_connection(name: str, store: str | None) -> None:
    """ValueError unless a place in an object store has the id of a connection, and a directory none."""
    if is_in_store(name) and not store:
        raise ValueError(f"store: name the Airflow connection, of type aws, by which {name} is reached")
    if not is_in_store(name) and store is not None:
        raise ValueError(f"store: {name} is a directory, which has none; leave store out, or name s3://…")


def spelt(name: str) -> str:
    """The one spelling of `s3://bucket/prefix`; ValueError for what is no such place."""
    return "s3://" + "/".join(place_of(name))


def place_of(name: str) -> tuple[str, str]:
    """(bucket, prefix) of `s3://bucket/prefix`, without slashes at the end; ValueError for what is no such place."""
    scheme, _, rest = name.partition("://")
    if scheme != "s3":
        way = f"write s3://{rest}" if scheme.lower() in ("s3", "s3a", "s3n") else "other stores are not tried yet"
        raise ValueError(f"{name!r}: an object store is named as s3://bucket/orders; {way}")
    if "@" in name:
        # Not shown: it may hold a password.
        raise ValueError("the name of a place in an object store has no login in it; the connection has that")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise ValueError(
            f"{name!r}: {bucket!r} is no name of a bucket, which has 3 to 63 lower-case letters, digits, '.' and '-'"
        )
    if not prefix:
        raise ValueError(f"{name!r} is a whole bucket; name a place in it, such as s3://{bucket}/orders")
    if not _KEY.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
        raise ValueError(
            f"{name!r}: a place in a bucket has letters without accents, digits, '_', '.', '=' and '-' between single "
            "slashes, and neither '.' nor '..' alone"
        )
    if len(prefix) > _KEY_BYTES:
        raise ValueError(f"a place in a bucket has at most {_KEY_BYTES} characters, and this one has {len(prefix)}")
    return bucket, prefix


def options_of(
    where: str, endpoint: str | None, login: str | None, password: str | None, extra: Mapping[str, Any]
) -> dict[str, str]:
    """Options by what a connection of type `aws` has, as Airflow's Amazon provider names it.

    Without a login who sends uses what its environment has: a role, or keys. Without an endpoint it is Amazon's store.
    Raises SettingsError, which shows no value but the endpoint's, for what is not supported: a role that was left out
    in silence would be another one's rights.
    """
    unknown = sorted(extra.keys() - set(_TAKEN.split(", ")))
    if unknown:
        raise SettingsError(
            f"{where}: {unknown[0]!r} in its extra is not supported for object stores, which take {_TAKEN}; a role "
            "or a profile is given by the environment of Airflow's processes, with login and password left empty"
        )
    if extra.get("verify", True) is not True:
        raise SettingsError(f"{where}: 'verify' in its extra must be true: certificates are always checked")
    if bool(login) != bool(password):
        raise SettingsError(
            f"{where} has only one of login and password; they are the access key id and the secret access key, or "
            "both are empty, and the environment of Airflow's processes has a role or keys"
        )
    token = _text(where, extra, "aws_session_token")
    if token and not login:
        raise SettingsError(f"{where}: 'aws_session_token' in its extra needs a login and a password")
    region = _text(where, extra, "region_name")
    endpoint = _endpoint(where, endpoint or _of_service(where, extra) or _text(where, extra, "endpoint_url"))
    found = {
        "aws_access_key_id": login,
        "aws_secret_access_key": password,
        "aws_session_token": token,
        "aws_region": region or (_REGION if endpoint else None),
        "aws_endpoint": endpoint,
        # Else one in the environment would be preferred.
        "aws_endpoint_url_s3": endpoint,
        "aws_allow_http": "true" if endpoint and endpoint.startswith("http://") else None,
        "aws_virtual_hosted_style_request": _is_virtual(where, extra),
        # Nor is any of these to come from the environment: one of two writers wins by conditional requests alone.
        "aws_conditional_put": "etag",
        "aws_skip_signature": "false",
    }
    return {name: value for name, value in found.items() if value}


def _text(where: str, extra: Mapping[str, Any], name: str) -> str | None:
    value = extra.get(name)
    if value is not None and not isinstance(value, str):
        raise SettingsError(f"{where}: {name!r} in its extra is no text")
    return value or None


def _object(where: str, extra: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = extra.get(name) or {}
    if not isinstance(value, dict):
        raise SettingsError(f"{where}: {name!r} in its extra is no JSON object")
    return cast("dict[str, Any]", value)


def _of_service(where: str, extra: Mapping[str, Any]) -> str | None:
    """The endpoint that the provider has for S3 alone."""
    return _text(where, _object(where, _object(where, extra, "service_config"), "s3"), "endpoint_url")


def _is_virtual(where: str, extra: Mapping[str, Any]) -> str | None:
    """Whether the bucket is part of the host, where `config_kwargs` says so, as botocore names it."""
    said = dict(_object(where, extra, "config_kwargs"))
    of_s3 = said.pop("s3", {})
    style = of_s3.get("addressing_style") if isinstance(of_s3, dict) else None
    if said or of_s3 not in ({}, {"addressing_style": style}) or style not in (None, "path", "virtual"):
        raise SettingsError(
            f"{where}: of 'config_kwargs' in its extra nothing but "
            '{"s3": {"addressing_style": "path"}}, or "virtual", is supported'
        )
    return {"path": "false", "virtual": "true"}.get(style or "")


def _endpoint(where: str, given: str | None) -> str | None:
    if not given:
        return None
    url = urlsplit(given)
    if "@" in url.netloc:
        # Not shown: it may hold a password.
        raise SettingsError(f"{where}: its endpoint has a login in it; put that into the connection's own fields")
    try:
        is_fit = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        is_fit = False
    if not is_fit or url.query or url.fragment or re.search(r"\s", given):
        raise SettingsError(
            f"{where}: its endpoint {given!r} is no address; write it as https://HOST or http://HOST:9000"
        )
    return given.rstrip("/")
