"""What errors of delta-rs and obstore say of an object store or a disk, in a line and without what is secret."""

from __future__ import annotations

import re

_OF_STORAGE = "os error", "ObjectStore", "Object Store", "LocalFileSystem", "Generic S3 error"
"""By these an error is told to be of the disk or the store, and not of what is in it."""
_COLOURED = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = re.compile(r"\b([45]\d\d) ([A-Z][A-Za-z ]+?)(?=\s*(?::|<|$))")
_CODE, _MESSAGE = re.compile(r"<Code>([^<]*)</Code>"), re.compile(r"<Message>([^<]*)</Message>")
_PASSING, _LASTING = ("408", "429"), ("501",)
"""Answers that pass though they are a client's fault, and that last though they are a server's."""
_OF_A_ROLE = "/latest/api/token", "/latest/meta-data/", "loading credentials"
"""By these an error is told to be of the search for a role that the machine has."""


def passes(error: Exception) -> bool:
    """Whether it is of the place, which may be there again, and not of what is in it or of who asks."""
    status = _STATUS.search(_plain(error))
    if status is not None:
        return status[1] in _PASSING or (status[1].startswith("5") and status[1] not in _LASTING)
    return isinstance(error, OSError) or any(sign in str(error) for sign in _OF_STORAGE)


def said(error: Exception, private: bool) -> str:
    """What it says, in a line; of a private pipeline nothing that could be a value, as paths have some."""
    text = _plain(error)
    status = _STATUS.search(text)
    if any(sign in text for sign in _OF_A_ROLE):
        return "no keys and no role were found, neither in the connection nor on this machine"
    if status is None:
        return type(error).__name__ if private else text
    code, message = _CODE.search(text), _MESSAGE.search(text)
    parts = [f"{status[1]} {status[2]}", *([code[1]] if code else []), *([message[1]] if message else [])]
    return f"the object store answers {': '.join(parts[:2] if private else parts)}"


def _plain(error: Exception) -> str:
    # obstore adds what developers of it see, and delta-rs draws a tree of what has caused what.
    text = _COLOURED.sub("", str(error).partition("\nDebug source:")[0]).replace(" ↳", ":")
    return " ".join(text.split()).replace(" :", ":")
