"""What a spec passes to its DAG, with what it names imported and held against what Airflow takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk.definitions.deadline import DeadlineAlert

from ratchet.errors import SpecError
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.reference import load


def of_dag(spec: Pipeline) -> dict[str, Any]:
    """Arguments of the DAG, without `default_args`; SpecError where one cannot be imported, or is not what it must."""
    given = {name: value for name, value in spec.airflow.given.items() if name != "default_args"}
    return {name: _loaded(value, name, f"airflow.{name}") for name, value in given.items()}


def of_tasks(spec: Pipeline) -> dict[str, Any]:
    """Arguments of every task; SpecError likewise."""
    args = spec.airflow.default_args
    return {
        "owner": args.owner,
        "retries": args.retries,
        "retry_delay": args.retry_delay,
        # Where slots are short, what is prepared is committed before anything else begins.
        "weight_rule": "upstream",
        **{name: _loaded(value, name, f"airflow.default_args.{name}") for name, value in args.given.items()},
    }


def fault(spec: Pipeline) -> str | None:
    """What is wrong with what the spec names for Airflow and for halts, in a line; None where all of it is there."""
    try:
        of_dag(spec)
        of_tasks(spec)
        for name in spec.on_halt:
            called(name, "on_halt")
    except SpecError as error:
        return str(error)
    return None


def called(reference: str, field: str) -> Callable[[Any], object]:
    """What a reference in a field of a spec names, which can be called; SpecError if it cannot."""
    found = load(reference, field)
    if not callable(found):
        raise SpecError(f"Pipeline.{field}: {reference!r} is a {type(found).__name__}, which cannot be called")
    return found


def _loaded(value: Any, name: str, field: str) -> Any:
    if name == "deadline":
        return [_deadline(reference, field) for reference in value]
    return [called(reference, field) for reference in value] if name.endswith("_callback") else value


def _deadline(reference: str, field: str) -> DeadlineAlert:
    found = load(reference, field)
    if not isinstance(found, DeadlineAlert):
        raise SpecError(f"Pipeline.{field}: {reference!r} is a {type(found).__name__}, not a DeadlineAlert")
    return found
