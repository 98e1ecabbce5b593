"""process: one try at a slice, from its job to its vote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ratchet.errors import Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import SliceWork, Vote, counted
from ratchet.logs import get_logger
from ratchet.protocol.votes import Cast, cast_vote, vote_no
from ratchet.spec.pipeline import Pipeline


@dataclass(frozen=True)
class Processed:
    """A slice's results, and what became of the vote for them."""

    vote: Vote
    cast: Cast

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {sink.rows:,}" for name, sink in self.vote.sinks.items())
        seconds = sum(self.vote.seconds.values())
        return f"{self.cast}; {counted(self.vote.records, 'record')} read in {seconds:.2f} s; rows: {counts}"


def process_slice(ledger: Ledger, spec: Pipeline, work: SliceWork, run: Callable[[], Vote]) -> Processed:
    """Have `run` do the slice's job and cast its vote.

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
    return Processed(vote, cast_vote(ledger, spec, work.token, vote))
