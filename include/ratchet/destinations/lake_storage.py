"""Where the files of a lake are, as delta-rs is told it, and what its errors say of that place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from deltalake.exceptions import CommitFailedError, TableNotFoundError

from ratchet.destinations.object_store import ObjectStore
from ratchet.errors import SettingsError

_LIMITS = {
    "timeout": "30s",
    "connect_timeout": "5s",
    "max_retries": "10",
    "retry_timeout": "30s",
    "backoff_config.max_backoff": "5s",
}
"""Of one request, and of what is tried again: an object store that is away is told within a minute or so."""
_OF_STORAGE = "os error", "ObjectStore", "Object Store", "LocalFileSystem", "Generic S3 error"
"""By these an error of the library is told to be of the disk or the store, and not of the table."""
_COLOURED = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = re.compile(r"\b([45]\d\d) ([A-Z][A-Za-z ]+?)(?=\s*(?::|<|$))")
_CODE, _MESSAGE = re.compile(r"<Code>([^<]*)</Code>"), re.compile(r"<Message>([^<]*)</Message>")
_PASSING, _LASTING = ("408", "429"), ("501",)
"""Answers that pass though they are a client's fault, and that last though they are a server's."""
_TOKENS = ("aws_session_token", "aws_token", "session_token", "token")
"""What delta-rs takes for a session's token, in whichever case, from the environment too."""
_METADATA = "http://169.254."
"""Where a machine in a cloud asks for its role."""


@dataclass(frozen=True)
class Storage:
    """A directory, or a place in an object store, and the options by which delta-rs reaches it."""

    place: str
    options: dict[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, name: str, store: ObjectStore | None) -> Storage:
        """SettingsError where the environment has what delta-rs would mix with the connection's own."""
        if store is None:
            return cls(name)
        has_login = "aws_access_key_id" in store.options and "aws_session_token" not in store.options
        for variable in os.environ if has_login else ():
            if variable.lower() in _TOKENS:
                raise SettingsError(
                    f"{store.url}: the connection has a login without a session token, and delta-rs would add the one "
                    f"in the environment variable {variable}; unset that where it runs, or leave the login out"
                )
        # Never from the environment: without it one of two writers wins by a conditional request.
        return cls(store.url, {**store.options, **_LIMITS, "AWS_S3_ALLOW_UNSAFE_RENAME": "false"})


def passes(error: Exception) -> bool:
    """Whether an error of the library is of the place, which may be there again, and not of what is in it."""
    status = _STATUS.search(_plain(error))
    if status is not None:
        return status[1] in _PASSING or (status[1].startswith("5") and status[1] not in _LASTING)
    is_known = isinstance(error, OSError | CommitFailedError | TableNotFoundError)
    return is_known or any(sign in str(error) for sign in _OF_STORAGE)


def said(error: Exception, private: bool) -> str:
    """What an error says, in a line; of a private pipeline nothing that could be a value, as paths have some."""
    text = _plain(error)
    status = _STATUS.search(text)
    if status is not None:
        code, message = _CODE.search(text), _MESSAGE.search(text)
        parts = [f"{status[1]} {status[2]}", *([code[1]] if code else []), *([message[1]] if message else [])]
        if _METADATA in text:
            return "neither the connection nor this machine has keys or a role"
        return f"the object store answers {': '.join(parts[:2] if private else parts)}"
    return type(error).__name__ if private else text


def _plain(error: Exception) -> str:
    # The library draws a tree of what has caused what.
    return " ".join(_COLOURED.sub("", str(error)).replace(" ↳", ":").split()).replace(" :", ":")
