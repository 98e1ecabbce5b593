"""process: one try at a slice, from its job to its vote."""

from __future__ import annotations

from collections.abc import Callable

from ratchet.errors import Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import SliceWork, Vote
from ratchet.logs import get_logger
from ratchet.protocol.votes import cast_vote, vote_no
from ratchet.spec.pipeline import Pipeline


def process_slice(ledger: Ledger, spec: Pipeline, work: SliceWork, run: Callable[[], Vote]) -> str:
    """Have `run` do the slice's job and cast its vote; returns the line that says what became of it.

    A transform that refuses is a vote of no: Refused, with the transaction aborted. Whatever else `run` raises leaves
    no vote.
    """
    try:
        vote = run()
    except Refused as refused:
        vote_no(ledger, work.token, str(refused))
        raise
    for absent in vote.absent or ():
        get_logger().warning(f"{work.token}: {absent}")
    if vote.cut:
        get_logger().info(f"{work.token}: {vote.cut:,} moments had digits beyond microseconds, which were cut off")
    said = cast_vote(ledger, spec, work.token, vote)
    counts = ", ".join(f"{name} {sink.rows:,}" for name, sink in vote.sinks.items())
    return f"{said}; {vote.records:,} records read in {sum(vote.seconds.values()):.2f} s; rows: {counts}"
