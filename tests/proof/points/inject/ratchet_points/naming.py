"""How a point is named: which functions of ratchet do what to which table."""

from __future__ import annotations

import hashlib
import re
import sys
from types import FrameType

_PLUMBING = {
    "ledger.connection.Ledger.begin",
    "ledger.connection.Ledger._begin",
    "ledger.connection.Ledger.snapshot",
    "ledger.crowded.connect",
}
"""Through these goes everything; the functions that call them tell more."""
_WORDS = re.compile(rb"\b(insert\s+into|update|delete\s+from)\s+(?!of\b)([\w.\"]+)", re.IGNORECASE)
_FROM = re.compile(rb"\bfrom\s+([\w.\"]+)", re.IGNORECASE)
_OBJECT = re.compile(
    rb"^\s*(create|drop|copy|truncate|alter|lock)\s+(?:unique\s+|temporary\s+|temp\s+)?"
    rb"(?:table\s+|index\s+)?(?:if\s+(?:not\s+)?exists\s+)?([\w.\"]+)",
    re.IGNORECASE,
)
_DECLARED = re.compile(rb"^DECLARE \S+ CURSOR FOR\s+")
_CURSOR = re.compile(r'"c_[0-9a-f_]+"')
"""SQLAlchemy gives each cursor a name of its own."""
_SAVEPOINT = re.compile(r" \S*savepoint_\d+", re.IGNORECASE)
_STAGE = re.compile(r"^(ratchet_stage\.\*)_\d+_\d+_(\d+)$")


def where() -> str:
    """The two innermost functions of ratchet on the stack, the outer one first."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < 2:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("ratchet."):
            name = f"{module.removeprefix('ratchet.')}.{frame.f_code.co_qualname}".replace(".<locals>", "")
            if name not in _PLUMBING and found[-1:] != [name]:
                found.append(name)
        frame = frame.f_back
    return " > ".join(reversed(found)) + ": " if found else ""


def said(statement: bytes, pipeline: str) -> str:
    """What a statement does to which table, in two words: `UPDATE ratchet.slices`."""
    if b"pg_notify(" in statement:
        return "NOTIFY"
    if statement[:6] == b"listen":
        return "LISTEN"
    if declared := _DECLARED.match(statement):
        return f"{said(statement[declared.end() :], pipeline)}, by a cursor"
    written = _WORDS.search(statement)
    if written and not statement.lstrip()[:4].lower() == b"copy":
        verb, table = written.group(1).split()[0], written.group(2)
    elif found := _OBJECT.match(statement):
        verb, table = found.groups()
    else:
        verb = (statement.split(None, 1) or [b"-"])[0]
        found = _FROM.search(statement) if verb.lower() in (b"select", b"with") else None
        if found is None:
            plain = _CURSOR.sub('"*"', " ".join(statement.decode(errors="replace").split()))
            return _SAVEPOINT.sub("", plain).split("(")[0][:40]
        table = found.group(1)
        if b" for update" in statement.lower() or b"for share" in statement.lower():
            verb = b"lock"
    name = table.decode().replace('"', "")
    name = re.sub(rf"(^|[._]){re.escape(pipeline)}(?=_|$)", r"\1*", name)
    name = _STAGE.sub(r"\1_\2", name)
    return f"{verb.decode().upper()} {name}"


def fingerprint(statement: bytes) -> str:
    """What a statement is known by: its text, whatever its white space."""
    return hashlib.sha1(b" ".join(statement.split()), usedforsecurity=False).hexdigest()[:16]
