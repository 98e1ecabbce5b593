"""What other DAGs are told of commits: an asset for each sink, updated with the transactions that are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from ratchet.operate.effects import Effect, Effects
    from ratchet.spec.pipeline import Pipeline

GROUP = "ratchet"


def alias_of(pipeline: str) -> AssetAlias:
    """All sinks of a pipeline, as the commit task names them before it knows whether it has anything to tell."""
    return AssetAlias(f"x-ratchet://{pipeline}/sinks", group=GROUP)


def asset_of(pipeline: str, sink: str) -> Asset:
    """A sink, named as the spec names it."""
    return Asset(f"x-ratchet://{pipeline}/sinks/{sink}", group=GROUP)


def tell(context: Any, spec: Pipeline, effects: Effects) -> None:
    """Have Airflow update the asset of each sink when this task has succeeded, if anything is committed.

    All in one update: of several at once Airflow gives the first alone to the run that it starts.
    """
    events = context["outlet_events"][alias_of(spec.name)]
    for sink in spec.sinks:
        # One that came into the spec after a commit has nothing of it.
        told = [effect for effect in effects.transactions if sink.name in effect.rows]
        if told:
            events.add(asset_of(spec.name, sink.name), _extra(effects, sink.name, told))


def _extra(effects: Effects, sink: str, told: list[Effect]) -> dict[str, Any]:
    return {
        "pipeline": effects.pipeline,
        "sink": sink,
        "transactions": [
            {
                "txid": effect.txid,
                "revision": effect.revision,
                "ranges": [
                    {"topic": r.topic, "partition": r.place[1], "from": r.from_offset, "until": r.until_offset}
                    for r in effect.ranges
                ],
                "rows": effect.rows[sink],
                "committed_at": effect.committed_at.isoformat(),
            }
            for effect in told
        ],
        "watermark": dict(effects.watermark),
    }
