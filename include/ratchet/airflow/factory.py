"""One DAG for each pipeline: begin → process → commit, and settle whatever came."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param, chain

from ratchet.airflow import arguments
from ratchet.airflow.begin import BeginOperator
from ratchet.airflow.commit import CommitOperator
from ratchet.airflow.process import SLICE_NAME, ProcessOperator
from ratchet.airflow.run import START
from ratchet.airflow.settle import SettleOperator
from ratchet.airflow.started import BEGIN
from ratchet.ledger.topics import titled
from ratchet.ledger.work import counted
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.sql import Sql

DEFAULT_POOL = "default_pool"
"""Airflow's own, which every installation has."""
PROCESS_POOL = "RATCHET_PROCESS_POOL"
"""Names the pool of the process tasks, whose slots bound how many slices are worked on at once, over all pipelines.

A pipeline whose spec names a pool for its tasks has that one."""


def make_dag(spec: Pipeline) -> DAG:
    """The DAG whose runs are the pipeline's transactions. Nothing is read or connected to here.

    SpecError where what the spec passes to Airflow cannot be imported.
    """
    of_tasks = arguments.of_tasks(spec)
    with DAG(
        spec.name,
        description=spec.description or f"Transactions from {titled(spec.source.names or [spec.source.title])}",
        schedule=_schedule(spec),
        start_date=START,
        catchup=False,
        # Order and admission are the ledger's; two more, so that a run which skips never blocks one that works.
        max_active_runs=spec.max_in_flight + 2,
        params=_params(spec),  # pyright: ignore[reportArgumentType]: an attrs converter makes it ParamsDict
        tags=["ratchet", *spec.tags],
        doc_md=describe(spec),
        default_args=of_tasks,
        **arguments.of_dag(spec),
    ) as dag:
        begin = BeginOperator(task_id=BEGIN, pipeline=spec.name)
        process = ProcessOperator.partial(
            task_id="process",
            pipeline=spec.name,
            map_index_template=SLICE_NAME,
            do_xcom_push=False,
            pool=of_tasks.get("pool") or os.environ.get(PROCESS_POOL) or DEFAULT_POOL,
        ).expand(item=begin.output)
        commit = CommitOperator(task_id="commit", pipeline=spec.name)
        settle = SettleOperator(task_id="settle", pipeline=spec.name)
        chain(begin, process, commit, settle.as_teardown(setups=begin, on_failure_fail_dagrun=True))
    return dag


def _schedule(spec: Pipeline) -> str | CronDataIntervalTimetable | list[Asset] | None:
    """By interval only a timetable with intervals will do; the default one's have no length."""
    if spec.runs is not None:
        from ratchet.airflow.arrivals import arrivals_of

        return [arrivals_of(spec, spec.runs)]
    if spec.plan == "interval" and spec.schedule is not None:
        return CronDataIntervalTimetable(spec.schedule, timezone="UTC")
    return spec.schedule


def _params(spec: Pipeline) -> dict[str, Param]:
    return {
        "max_records": Param(
            spec.max_records,
            type="integer",
            minimum=1,
            maximum=spec.max_records,
            title="Records at most",
            description=(
                f"How many records this run's transaction may take, 1 to {spec.max_records:,}, counted in offsets. "
                "It matters only when the run begins a new transaction: what was begun before keeps its plan."
            ),
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            maxLength=200,
            title="Reason",
            description="Why you start this run, up to 200 characters; begin writes it to its log.",
        ),
    }


def _topics(spec: Pipeline) -> str:
    if spec.source.pattern is not None:
        return f"Topics whose names match `{spec.source.pattern}`"
    return f"Topic{'s' if spec.source.is_several else ''} {', '.join(f'`{name}`' for name in spec.source.names)}"


def describe(spec: Pipeline) -> str:
    """What the DAG's page says: what is read, what is written, the caps, and what a clear does."""
    tombstones = {
        "delete": "A record without a value deletes its key.",
        "dead_letter": "A record without a value is a dead letter.",
    }
    lines = [
        *([spec.description, ""] if spec.description else []),
        "Each run is one transaction: it takes a range of offsets, and all its rows become visible at once, in order.",
        "",
        "### Reads",
        f"{_topics(spec)} as {spec.source.value.kind}: `{spec.source.value.columns}`"
        + (f", key `{', '.join(map(str, spec.source.key_columns))}`" if spec.source.key else "")
        + f". {'' if spec.source.value.deletes else tombstones[spec.source.tombstones]}".rstrip(),
        "",
        "### Writes",
        *(f"- `{sink.shown}`: {sink.described}" for sink in sinks_of(spec)),
        "",
        *_transform(spec),
        "",
        "### Limits",
        f"- at most {counted(spec.max_records, 'record')} a transaction, {spec.slice_records:,} a slice",
        f"- at most {counted(spec.max_in_flight, 'transaction')} at once; "
        "begin and settle start runs while records are due",
        *(
            [f"- an epoch that is not prepared after {spec.timeout_seconds} s is aborted"]
            if spec.timeout_seconds
            else []
        ),
        *(f"- gate: {gate.title}" for gate in spec.gates),
        f"- connections: `{spec.kafka}` (Kafka), `{spec.spark}` (Spark), `{spec.ledger}` (ledger and tables)",
        "",
        "### When something failed",
        "Clear the failed run, the whole of it: begin resumes its transaction. Or do nothing: the next run of any "
        f"kind finishes what was left, in order. After {spec.max_failures} failures of one transaction the line halts "
        "there; begin then says why and what to do.",
        "",
        "### Replay",
        "Clear the run of a committed transaction, the whole of it, or backfill its dates: the same offsets are "
        "processed with today's code, and the result takes the place of the old one, all at once. It can be done for "
        f"{_days(spec.keep_deltas)} after the commit.",
    ]
    return "\n".join(lines)


def _transform(spec: Pipeline) -> list[str]:
    """How records become rows, in Markdown."""
    match spec.transform:
        case None:
            return ["Each sink takes the columns of its own names."]
        case str():
            return [f"The transform is `{spec.transform}`."]
        case Sql():
            lines: list[str] = []
            for name, statement in spec.transform.statements.items():
                lines += [*([""] if lines else []), f"What `{name}` is given:", "", "```sql", statement.strip(), "```"]
            return lines


def _days(kept: timedelta) -> str:
    return f"{kept.days} days" if kept >= timedelta(days=2) else str(kept)
