"""The specs there are: the modules of package `pipelines` that define PIPELINE; a broken one hides no other."""

from __future__ import annotations

import importlib
import os
import pkgutil

from ratchet.errors import SpecError
from ratchet.spec.pipeline import Pipeline


def read_specs() -> tuple[dict[str, Pipeline], list[str]]:
    """Every spec that can be read, by name, and a line for each module that cannot, with module and field.

    A module whose pipeline or table another module has already is among the second.
    """
    package = importlib.import_module(os.environ.get("RATCHET_PIPELINES", "pipelines"))
    specs: dict[str, Pipeline] = {}
    faults: list[str] = []
    owners: dict[tuple[str, str], str] = {}
    for found in pkgutil.iter_modules(package.__path__):
        where = f"{package.__name__}.{found.name}"
        try:
            spec = getattr(importlib.import_module(where), "PIPELINE", None)
        except SpecError as error:
            faults.append(f"{where}: {error}")
            continue
        except Exception as error:
            faults.append(f"{where}: cannot be imported: {type(error).__name__}: {error}")
            continue
        if spec is None:
            continue
        if not isinstance(spec, Pipeline):
            faults.append(f"{where}: PIPELINE is a {type(spec).__name__}, not a Pipeline")
            continue
        fault = _clash(spec, specs, owners)
        if fault:
            faults.append(f"{where}: {fault}")
            continue
        specs[spec.name] = spec
        owners |= {sink.table: spec.name for sink in spec.sinks}
    return specs, faults


def load_pipelines() -> dict[str, Pipeline]:
    """Every spec, by name; SpecError that names all the modules that cannot be read, and why."""
    specs, faults = read_specs()
    if faults:
        raise SpecError("; ".join(faults))
    return specs


def load_pipeline(name: str) -> Pipeline:
    """The spec with this name, whatever is wrong with the others; SpecError that says what is known."""
    specs, faults = read_specs()
    if name not in specs:
        raise SpecError(
            f"there is no pipeline {name!r}; known are {', '.join(specs) or 'none'}"
            + "".join(f"; {fault}" for fault in faults)
        )
    return specs[name]


def _clash(spec: Pipeline, specs: dict[str, Pipeline], owners: dict[tuple[str, str], str]) -> str | None:
    if spec.name in specs:
        return f"Pipeline.name: a pipeline {spec.name!r} exists already"
    for sink in spec.sinks:
        if sink.table in owners:
            return f"Pipeline.sinks: table {sink.name!r} belongs to pipeline {owners[sink.table]!r}"
    return None
