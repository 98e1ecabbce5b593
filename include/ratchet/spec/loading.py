"""The specs there are: the modules of package `pipelines` that define PIPELINE; a broken one hides no other."""

from __future__ import annotations

import importlib
import os
import pkgutil
from contextlib import suppress
from types import ModuleType

from ratchet.errors import SpecError
from ratchet.spec.pipeline import Pipeline


def read_specs() -> tuple[dict[str, Pipeline], list[str]]:
    """Every spec that can be read, by name, and a line for each module that cannot, with module and field.

    A module whose pipeline or table another module has already is among the second.
    """
    found: list[tuple[str, Pipeline]] = []
    specs: dict[str, Pipeline] = {}
    faults: list[str] = []
    owners: dict[tuple[str, str], str] = {}
    for where in modules():
        try:
            spec = _read(where)
        except SpecError as error:
            faults.append(f"{where}: {error}")
            continue
        if spec is not None:
            found.append((where, spec))
    # A name belongs to the module of that name, which `load_pipeline` reads alone.
    for where, spec in sorted(found, key=lambda of: not _is_named(*of)):
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
    """The spec with this name, whatever is wrong with the others; SpecError that says what is known.

    Of many modules only the one of that name is imported, if it is there and has the spec.
    """
    for where in modules():
        if where.rpartition(".")[2] == name:
            with suppress(SpecError):
                spec = _read(where)
                if spec is not None and spec.name == name:
                    return spec
    specs, faults = read_specs()
    if name not in specs:
        raise SpecError(
            f"there is no pipeline {name!r}; known are {', '.join(sorted(specs)) or 'none'}"
            + "".join(f"; {fault}" for fault in faults)
        )
    return specs[name]


def modules() -> list[str]:
    """The modules that may define a pipeline; none of them is imported."""
    of = package()
    return [f"{of.__name__}.{found.name}" for found in pkgutil.iter_modules(of.__path__)]


def package() -> ModuleType:
    """The package of the specs."""
    return importlib.import_module(os.environ.get("RATCHET_PIPELINES", "pipelines"))


def _read(where: str) -> Pipeline | None:
    """The pipeline of a module, if it defines one; SpecError where that is not one, or it cannot be imported."""
    try:
        spec = getattr(importlib.import_module(where), "PIPELINE", None)
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"cannot be imported: {type(error).__name__}: {error}") from error
    if spec is not None and not isinstance(spec, Pipeline):
        raise SpecError(f"PIPELINE is a {type(spec).__name__}, not a Pipeline")
    return spec


def _is_named(where: str, spec: Pipeline) -> bool:
    return where.rpartition(".")[2] == spec.name


def _clash(spec: Pipeline, specs: dict[str, Pipeline], owners: dict[tuple[str, str], str]) -> str | None:
    if spec.name in specs:
        return f"Pipeline.name: a pipeline {spec.name!r} exists already"
    for sink in spec.sinks:
        if sink.table in owners:
            return f"Pipeline.sinks: table {sink.name!r} belongs to pipeline {owners[sink.table]!r}"
    return None
