"""UUIDs, in one form."""

from __future__ import annotations

import re

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def uuid_of(text: str) -> str | None:
    """A UUID's text in lower case and with its hyphens, which may be missing; None if it is none."""
    text = text.lower()
    if len(text) == 32:
        text = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return text if _UUID.fullmatch(text) else None
