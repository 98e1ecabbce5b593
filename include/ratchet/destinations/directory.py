"""What destinations that are directories are called, and the columns by which their files are divided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from ratchet.spec.columns import Column
from ratchet.spec.types import Boolean, Date, Integer, String, Type


def directory_of(name: str) -> str:
    """The one spelling of an absolute path; ValueError for what is none."""
    if re.search(r"[%\\\x00-\x1f]", name):
        raise ValueError(f"{name!r}: a directory of a lake has no '%', no backslash and no control character")
    path = PurePosixPath("/" + name.lstrip("/") if name.startswith("/") else name)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) == 1:
        raise ValueError(f"{name!r} is no absolute path of a directory, such as /lake/orders")
    # One table has one address.
    return str(path)


def is_for_directories(kind: Type) -> bool:
    """Whether the name of a directory tells each value from all others. Delta Lake's text of a negative decimal is one
    that cannot be read, and that of bytes means others.
    """
    return isinstance(kind, Boolean | Date | Integer | String)


def undivided(by: Sequence[str], fields: Sequence[Column]) -> str | None:
    """Why files with these columns cannot be divided so, in a line; None where they can."""
    known = {column.name: column for column in fields}
    for name in by:
        if name not in known:
            return f"partition_by {name!r} is not one of columns: {', '.join(known)}"
        if not is_for_directories(known[name].type):
            return (
                f"partition_by {name!r}: the name of a directory does not hold values of type {known[name].type}; use "
                "a date, a boolean, a number without fraction, or a string"
            )
    if len(set(by)) != len(by):
        return "partition_by names a column twice"
    if known and set(by) == set(known):
        return "partition_by names every column; leave one to the files"
    return None
