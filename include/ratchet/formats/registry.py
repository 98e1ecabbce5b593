"""A registry of schemas, asked over Confluent's REST interface, which others than Confluent's answer as well.

An id means the same for ever, so a process keeps what it was once told. That an id is unknown may change, and is kept
by nobody but the caller.
"""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import quote, urlsplit
from uuid import UUID

import requests
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from ratchet.errors import NotGranted, RatchetError, RegistryUnreachable, SettingsError
from ratchet.formats.port import NoRow
from ratchet.values.endpoint import Endpoint
from ratchet.values.unfit import excerpt

CONNECT_SECONDS = 5
ANSWER_SECONDS = 10
"""How long the registry may send nothing."""
RETRY_SECONDS = 15
"""For so long an answer that may change is asked for again."""
_DEEPEST = 50
"""So many schemas may refer to one another in a row."""
_ACCEPTED = "application/vnd.schemaregistry.v1+json, application/json"
_UNKNOWN = (40401, 40402, 40403)
"""The registry's own codes: no such subject, version, schema."""
_ALWAYS_THERE = "/schemas/types"
"""Every registry has this page, and some have none for GUIDs."""

SchemaId = int | UUID
"""What a value names its schema by: the registry's own number, or a GUID, which is the same in each registry."""


@dataclass(frozen=True)
class Registered:
    """A schema as it was registered, and those that it refers to by name."""

    text: str
    kind: str
    """`"AVRO"`, `"JSON"` or `"PROTOBUF"`."""
    references: tuple[Registered, ...] = ()
    name: str = ""
    """By this name the schema that refers to it does so."""

    def behind(self) -> tuple[Registered, ...]:
        """All that it refers to, directly or not, each once and behind what it refers to itself."""
        found: dict[Registered, None] = {}
        for each in self.references:
            found |= dict.fromkeys((*each.behind(), each))
        return tuple(found)


@dataclass(frozen=True)
class Version:
    """A version of a subject: its number, the id of its schema, and that."""

    subject: str
    number: int
    id: int
    schema: Registered

    def __str__(self) -> str:
        return f"version {self.number} of subject {self.subject}"


_known: dict[tuple[str, SchemaId], Registered] = {}
"""What registries have said, by URL and id."""


class Registry:
    """The registry that a connection leads to.

    What does not answer, or says that it cannot at present, is RegistryUnreachable; what refuses the login or is no
    registry is SettingsError, with the connection's name and what to correct.
    """

    def __init__(self, connection: str, endpoint: Endpoint):
        parts = urlsplit(endpoint.url)
        self._connection, self._url = connection, endpoint.url.rstrip("/")
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._session = requests.Session()
        self._session.headers["Accept"] = _ACCEPTED
        token, authority = self._of_extra(endpoint, "token"), self._of_extra(endpoint, "ca")
        if token is not None:
            self._session.auth = _Authorization(f"Bearer {token}")
        elif endpoint.login is not None:
            pair = f"{endpoint.login}:{endpoint.password or ''}"
            self._session.auth = _Authorization(f"Basic {b64encode(pair.encode()).decode()}")
        # Given with each request: of a session's own, requests thinks less than of an environment variable.
        self._authority = True if authority is None else authority

    def schema(self, number: SchemaId) -> Registered:
        """The schema of an id; NoRow, which names it, where the registry has none, or knows no GUIDs."""
        known = _known.get((self._url, number))
        if known is None:
            found = self._asked(f"/schemas/ids/{number}") if isinstance(number, int) else self._by_guid(number)
            if found is None:
                raise NoRow(f"the value: schema {number} is not in the registry at {self._shown}{_hint(number)}")
            known = _known[self._url, number] = self._registered(found, f"schema {number}", 0)
        return known

    def _by_guid(self, guid: UUID) -> dict[str, Any] | None:
        found = self._answered(f"/schemas/guids/{guid}")
        is_unknown_page = found.status_code == 404 and _code(_json(found)) not in _UNKNOWN
        # Of a registry without that page the record asks too much; of any other server the connection is wrong.
        if is_unknown_page and isinstance(_json(self._answered(_ALWAYS_THERE)), list):
            raise NoRow(
                f"the value: found schema {guid}, and the registry at {self._shown} knows no GUIDs; have producers "
                "write ids in front of the value, by Confluent's PrefixSchemaIdSerializer"
            )
        return self._read(found)

    def version(self, subject: str, number: int | None = None) -> Version:
        """A version of a subject, the newest one if no number is given; SettingsError where there is none."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{'latest' if number is None else number}"
        found = self._asked(path)
        said = (
            f"subject {excerpt(subject)!r}" if number is None else f"version {number} of subject {excerpt(subject)!r}"
        )
        if found is None:
            raise SettingsError(
                f"connection {self._connection!r}: {said} is not in the registry at {self._shown}; name the subject "
                "under which the producers' schemas are registered"
            )
        is_number, its_id = found.get("version"), found.get("id")
        if not isinstance(is_number, int) or not isinstance(its_id, int):
            raise self._no_registry(f"its answer for {said} has no number and id")
        try:
            return Version(subject, is_number, its_id, self._registered(found, said, 0))
        except NoRow as reason:
            raise SettingsError(f"connection {self._connection!r}: {str(reason).removeprefix('the value: ')}") from None

    def register(self, subject: str, schema: str) -> int:
        """The id under which a subject has this schema of Avro, from now on if it had not; SettingsError where the
        registry does not take it.
        """
        path, sent = f"/subjects/{quote(subject, safe='')}", {"schema": schema}
        # Who may only read can use what others have registered.
        found = self._taken(self._answered(path, sent), subject)
        if found is None:
            found = self._taken(self._answered(f"{path}/versions", sent), subject)
        number = (found or {}).get("id")
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
            raise self._no_registry(f"its answer for a schema of subject {excerpt(subject)!r} has no id of 4 bytes")
        return number

    def _taken(self, found: requests.Response, subject: str) -> dict[str, Any] | None:
        """What the registry says of a schema that it was given; None where it does not have it."""
        if found.status_code in (409, 422):
            said = _json(found)
            why = cast("dict[str, Any]", said).get("message") if isinstance(said, dict) else found.text
            raise SettingsError(
                f"connection {self._connection!r}: the registry at {self._shown} does not take the schema for subject "
                f"{excerpt(subject)!r}: it answers {found.status_code}: {excerpt(str(why))}"
            )
        return self._read(found)

    def _registered(self, said: dict[str, Any], name: str, depth: int) -> Registered:
        if depth > _DEEPEST:
            raise NoRow(f"the value: {name} is reached by more than {_DEEPEST} references")
        text = said.get("schema")
        if not isinstance(text, str):
            raise self._no_registry(f"its answer for {name} has no schema")
        references: list[Registered] = []
        for reference in cast("list[dict[str, Any]]", said.get("references") or []):
            subject, version = str(reference.get("subject")), reference.get("version")
            found = self._asked(f"/subjects/{quote(subject, safe='')}/versions/{version}")
            if found is None:
                raise NoRow(
                    f"the value: {name} refers to version {version} of subject {excerpt(subject)!r}, which is not in "
                    f"the registry at {self._shown}"
                )
            said_as = f"version {version} of subject {excerpt(subject)!r}"
            of = self._registered(found, said_as, depth + 1)
            references.append(replace(of, name=str(reference.get("name"))))
        return Registered(text, str(said.get("schemaType") or "AVRO"), tuple(references))

    def _asked(self, path: str) -> dict[str, Any] | None:
        """What the registry says; None where it says that there is no such thing."""
        return self._read(self._answered(path))

    def _answered(self, path: str, sent: dict[str, str] | None = None) -> requests.Response:
        """The registry's answer, to what is sent if anything is; it may have given it only after some time."""
        limits, authority = (CONNECT_SECONDS, ANSWER_SECONDS), self._authority

        def answer() -> requests.Response:
            if sent is None:
                found = self._session.get(self._url + path, timeout=limits, verify=authority)
            else:
                # Another address would be asked without what is sent.
                found = self._session.post(
                    self._url + path, json=sent, timeout=limits, verify=authority, allow_redirects=False
                )
            if found.status_code == 429 or found.status_code >= 500:
                raise _NotNow(found)
            return found

        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_delay(RETRY_SECONDS),
            wait=wait_random_exponential(0.2, max=3),
            retry_error_callback=_last,
        )
        try:
            return retrying(answer)
        except (requests.RequestException, _NotNow, OSError, ValueError) as error:
            raise self._failed(error) from error

    def _read(self, found: requests.Response) -> dict[str, Any] | None:
        if found.status_code in (401, 403):
            refused = SettingsError if found.status_code == 401 else NotGranted
            right = "reading" if found.request.method == "GET" else "reading and registering"
            raise refused(
                f"connection {self._connection!r}: the registry at {self._shown} answers {found.status_code} "
                f"{found.reason}; correct its login and password, or the token in its extra, or grant it {right}"
            )
        said = _json(found)
        if found.status_code == 200 and isinstance(said, dict):
            return cast("dict[str, Any]", said)
        if found.status_code == 404 and _code(said) in _UNKNOWN:
            return None
        raise self._no_registry(f"it answers {found.status_code} {found.reason}: {excerpt(found.text)}")

    def _failed(self, error: Exception) -> RatchetError:
        """The error to raise, by what went wrong on the way."""
        match error:
            case _NotNow():
                why = f"it answers {error.answer.status_code} {error.answer.reason}"
            case requests.exceptions.SSLError() if not _may_pass(error):
                return SettingsError(
                    f"connection {self._connection!r}: TLS to the registry at {self._shown} fails: {_cause(error)}; "
                    'name the file of its authority in the extra, as {"ca": "/etc/ssl/registry.pem"}'
                )
            case requests.exceptions.Timeout():
                why = f"it is silent for {ANSWER_SECONDS} s"
            case requests.exceptions.ConnectionError() | requests.exceptions.ChunkedEncodingError():
                why = _cause(error)
            case _:
                # No URL, too many redirects, no file of an authority: asking again changes nothing.
                return SettingsError(
                    f"connection {self._connection!r}: the registry at {self._shown} cannot be asked: {_cause(error)}; "
                    "correct the connection's host, or what its extra says"
                )
        return RegistryUnreachable(
            f"connection {self._connection!r}: the registry of schemas at {self._shown} does not answer: {why}; check "
            "that it runs, and that the connection is right"
        )

    def _no_registry(self, why: str) -> SettingsError:
        return SettingsError(
            f"connection {self._connection!r}: what is at {self._shown} is no registry with Confluent's interface: "
            f"{why}; correct its URL, which of Apicurio's ends with /apis/ccompat/v7"
        )

    def _of_extra(self, endpoint: Endpoint, name: str) -> str | None:
        said = endpoint.extra.get(name)
        if said is not None and not isinstance(said, str):
            raise SettingsError(f"connection {self._connection!r}: {name!r} in its extra is no text")
        return said


class _Authorization:
    """Sends this; as the session's `auth` it goes before what the user's .netrc says."""

    def __init__(self, said: str):
        self._said = said

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._said
        return request


class _NotNow(Exception):
    """The registry says that it cannot answer at present."""

    def __init__(self, answer: requests.Response):
        super().__init__()
        self.answer = answer


def _json(answer: requests.Response) -> object:
    """What an answer says; None where that is no JSON."""
    try:
        return answer.json()
    except ValueError:
        return None


def _code(said: object) -> object:
    """The registry's own code of an error."""
    return cast("dict[str, Any]", said).get("error_code") if isinstance(said, dict) else None


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, requests.exceptions.SSLError):
        # An end that is being restarted breaks off; a certificate that is not trusted stays so.
        return not any(isinstance(each, ssl.SSLCertVerificationError) for each in _chain(error))
    transient = requests.exceptions.ConnectionError | requests.exceptions.Timeout
    return isinstance(error, transient | requests.exceptions.ChunkedEncodingError | _NotNow)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what has led to it, and what it holds as its reason."""
    while error is not None:
        yield error
        held = [each for each in error.args if isinstance(each, BaseException)]
        reason = getattr(held[0], "reason", None) if held else None
        yield from held
        if isinstance(reason, BaseException):
            yield from _chain(reason)
        error = error.__context__


def _last(state: RetryCallState) -> requests.Response:
    assert state.outcome is not None
    return state.outcome.result()


def _cause(error: BaseException) -> str:
    """The innermost words: those around it are urllib3's, with the addresses of objects."""
    while error.__context__ is not None:
        error = error.__context__
    return excerpt(re.sub(r"<[^>]* at 0x[0-9a-f]+>[,:]? ?", "", str(error))) or type(error).__name__


def _hint(number: SchemaId) -> str:
    """Apicurio's serializers of version 2 write eight bytes unless they are told otherwise; the first four are 0."""
    return "; Apicurio's serializers write ids of 4 bytes by `apicurio.registry.as-confluent`" if number == 0 else ""
