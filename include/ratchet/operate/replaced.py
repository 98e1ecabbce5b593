"""What a replay would put other results in place of: those that stand, as far as the ledger alone knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import select

from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.work import counted
from ratchet.operate.replay import spans
from ratchet.spec.pipeline import Pipeline


@dataclass(frozen=True)
class Replaced:
    """Results that stand: how many records they were made of, how many rows they are by sink, and with which code.

    `codes` are {code: the transactions whose result was made with it}. Rows of a keyed sink are those of the delta.
    """

    records: int
    rows: Mapping[str, int]
    codes: Mapping[str, tuple[int, ...]]


def replaced(ledger: Ledger, pipeline: str, txids: Collection[int]) -> Replaced:
    """What stands of these transactions; nothing of those that are voided."""
    c = transactions.c
    records, rows, codes = 0, dict[str, int](), dict[str, tuple[int, ...]]()
    wanted = set(txids)
    mine = (c.pipeline == pipeline, c.txid.between(min(wanted), max(wanted)), c.state == State.COMMITTED)
    newest_first = select(c.txid, c.records, c.releases, c.code_hash, c.applied).where(*mine)
    with ledger.snapshot() as conn:
        found = conn.execute(newest_first.order_by(c.txid, c.revision.desc()))
        for txid, revisions in groupby((row for row in found if row.txid in wanted), key=lambda row: row.txid):
            for row in revisions:
                made = codes.get(row.code_hash, ())
                codes[row.code_hash] = made if txid in made else (*made, txid)
                of: Mapping[str, Mapping[str, Any]] = row.applied or {}
                for sink, applied in of.items():
                    taken = applied["taken"]["rows"] if "taken" in applied else 0
                    rows[sink] = rows.get(sink, 0) + applied["rows"] - taken
                if row.releases is None:
                    # Those of a release are among them.
                    records += row.records or 0
                    break
    return Replaced(records, rows, codes)


def lines_of(found: Replaced, spec: Pipeline, first: int, last: int, *, voided: bool) -> list[str]:
    """What a person reads of it, and the command that says the rest."""
    rows = ", ".join(f"{count:,} in {sink}" for sink, count in sorted(found.rows.items()) if count)
    said = [f"{spec.name}: what stands was made of {counted(found.records, 'record')}, and is rows: {rows or 'none'}"]
    for code, txids in found.codes.items():
        now = "today's" if code == spec.code_hash else f"and today's is {spec.code_hash}"
        said.append(f"{spec.name}: {spans(txids)}: made with code {code}, {now}")
    options = f"--from {first} --to {last}{' --voided' if voided else ''} --dry-run"
    return [
        *said,
        f"`ratchet replay {spec.name} {options}` processes them now, by Spark, and says which rows and keys would be "
        "added, removed and changed",
    ]
