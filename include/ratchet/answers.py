"""What each command prints with --json, as JSON Schema: made from the types of the answers, kept in docs/schemas."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from ratchet.command import FAULTS

EXITS = {
    0: "done; `doctor` found no more than warnings",
    1: "refused or failed; the line on stderr has an [error code](errors.md) and says why; nothing was changed unless "
    "it says that the outcome is unknown",
    2: "the command was used wrongly",
    FAULTS: "`verify` or `doctor` found a fault, or `columns` a difference",
}
"""{exit status: its meaning}."""


_TOLD = (
    "Asked",
    "Compared",
    "Dropped",
    "Erased",
    "Migrated",
    "Moved",
    "Outcome",
    "Pruned",
    "Released",
    "Status",
    "Upcoming",
)
"""The answers that have the lines for people beside their fields."""
_TEXT = {"type": "string"}


def answers() -> dict[str, Any]:
    """{command: the type of its answer}, of every command that takes --json."""
    from ratchet.ledger.history import Event
    from ratchet.operate.columns import Compared
    from ratchet.operate.destinations import Moved
    from ratchet.operate.difference import Difference
    from ratchet.operate.doctor.finding import Finding
    from ratchet.operate.drop import Dropped
    from ratchet.operate.erase import Erased
    from ratchet.operate.migrate import Migrated
    from ratchet.operate.outcome import Outcome
    from ratchet.operate.prune import Pruned
    from ratchet.operate.release import Released, Trial
    from ratchet.operate.replay import Asked
    from ratchet.operate.snapshot.lag import Lag
    from ratchet.operate.snapshot.letters import Letter
    from ratchet.operate.snapshot.places import Origins, Where
    from ratchet.operate.snapshot.status import Status
    from ratchet.operate.snapshot.transaction import Whole
    from ratchet.operate.upcoming import Upcoming
    from ratchet.operate.verify import Check
    from ratchet.spark.preview import Preview

    moves = dict.fromkeys(("retry", "abort", "void", "accept-loss", "repartitioned", "pause-at", "resume"), Outcome)
    sent = dict.fromkeys(("detach", "attach"), Moved)
    done = {"migrate": Migrated, "plan": Upcoming, "erase": Erased, "prune": Pruned, "drop": Dropped}
    return {
        **moves,
        **done,
        **sent,
        "replay": Asked | list[Difference],
        "release": Released | list[Trial],
        "status": list[Status],
        "history": list[Event],
        "show": Whole,
        "lag": list[Lag],
        "where": Where,
        "origin": Origins,
        "dlq": list[Letter],
        "verify": list[Check],
        "preview": Preview,
        "columns": list[Compared],
        "doctor": list[Finding],
    }


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of a command's answer: each field is always there, and no other."""
    made = TypeAdapter(answers()[command]).json_schema(mode="serialization")
    kinds = {made.get("title", ""): made, **made.get("$defs", {})}
    for name, kind in kinds.items():
        fields = kind.get("properties")
        if fields is None:
            continue
        if name in _TOLD:
            fields["said"] = {"description": "The lines that a person reads.", "type": "array", "items": _TEXT}
        for field in fields.values():
            field.pop("title", None)
            field.pop("default", None)
        kind |= {"required": [*fields], "additionalProperties": False}
    made |= {"title": f"ratchet {command} --json"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def document(command: str) -> str:
    """The file docs/schemas/COMMAND.json."""
    return json.dumps(schema(command), indent=2, ensure_ascii=False) + "\n"
