"""A halt as a value: where and why a line stands still, and the ways out; `halts` finds and counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ratchet.ledger.work import utc


class Stopped(Protocol):
    """What is told of a transaction that is halted."""

    @property
    def pipeline(self) -> str: ...
    @property
    def txid(self) -> int: ...
    @property
    def run_id(self) -> str: ...
    @property
    def failures(self) -> int: ...
    @property
    def halted_at(self) -> datetime | None: ...
    @property
    def reason(self) -> str | None: ...


@dataclass(frozen=True)
class WayOut:
    """What a person can do about a halt: what it is, what it leads to, and the command, where there is one."""

    what: str
    then: str
    command: str | None = None


@dataclass(frozen=True)
class Halt:
    """Where and why a line stands still, as what a spec's `on_halt` names is given it; as text it is one line.

    `code` is that of the error that the last try met, RAT-405 where none has said anything. `dag_id` and `run_id` are
    of the run that had the transaction last. Of a private pipeline the reason has no values of records.
    """

    pipeline: str
    txid: int
    halted_at: datetime
    failures: int
    reason: str
    code: str
    dag_id: str
    run_id: str

    @property
    def ways_out(self) -> tuple[WayOut, ...]:
        """What a person can do, the usual first."""
        return ways_out(self.pipeline, self.txid, self.run_id)

    def __str__(self) -> str:
        return why_halted(self)


def ways_out(pipeline: str, txid: int, run_id: str) -> tuple[WayOut, ...]:
    """What a person can do about a halt at a transaction, which a run had last."""
    return (
        WayOut(f"correct the cause and clear run {run_id}", "the transaction is processed anew"),
        WayOut("correct the cause and retry", "the next run processes it anew", f"ratchet retry {pipeline} {txid}"),
        WayOut("give its records up", "it commits nothing", f"ratchet void {pipeline} {txid} --reason …"),
    )


def why_halted(row: Stopped) -> str:
    """Which transaction, since when, why, and the ways out, in a line."""
    clear, retry, void = ways_out(row.pipeline, row.txid, row.run_id)
    failures = "1 failure" if row.failures == 1 else f"{row.failures} failures"
    return (
        f"{row.pipeline} is halted at transaction {row.txid} since {utc(row.halted_at)}, "
        f"after {failures}: {row.reason}; "
        f"{clear.what}, or `{retry.command}`, or {void.what} with `{void.command}`"
    )
