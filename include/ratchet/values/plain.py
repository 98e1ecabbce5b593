"""Values of rows as any program reads them: what JSON has no form for becomes text."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

_PLAIN = (str, bool, int)


def plain(value: object) -> object:
    """A cell as JSON has it: moments in UTC, bytes as base64, decimals and other types as their text."""
    match value:
        case None:
            return None
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return b64encode(value).decode()
        case datetime():
            return value.astimezone(UTC).isoformat()
        case list() | tuple():
            return [plain(each) for each in cast("list[object]", value)]
        case Mapping():
            return {str(name): plain(each) for name, each in cast("Mapping[object, object]", value).items()}
        case _:
            return value if isinstance(value, _PLAIN) else str(value)
