"""Checks of what is around the ledger: the installed packages, the specs, and Airflow by its API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from packaging.requirements import Requirement

from ratchet.operate.doctor.finding import Check, Finding, fault, ok, warning
from ratchet.spec.pipeline import Pipeline

PATIENCE = 10.0
"""Seconds for one answer of Airflow's API."""
MAINTENANCE = "maintenance"
DEFAULT_POOL = "default_pool"
"""Airflow's, for tasks that name none."""
AIRFLOW = "3.3.2"
"""The version that ratchet is tried with; earlier ones of its line have known security defects."""


def checks(faults: Iterable[str]) -> Iterator[Check]:
    """Those of this installation; `faults` are the specs that cannot be read."""
    yield Check("packages", _packages)
    yield Check("spec", partial(_specs, [*faults]))


def _packages() -> Iterator[Finding]:
    found = misfits(map(Requirement, requires("ratchet") or ()))
    if found:
        said = ", ".join(found)
        yield warning("packages", said, "Install the versions of requirements.txt; others are not tried.")
    else:
        yield ok("packages", "the installed packages are those that this version pins")


def misfits(wanted: Iterable[Requirement]) -> list[str]:
    """Packages that are installed in another version than wanted, or not at all."""
    said: list[str] = []
    for each in wanted:
        if each.marker and not each.marker.evaluate():
            continue
        try:
            held = version(each.name)
        except PackageNotFoundError:
            said.append(f"{each.name} is not installed")
            continue
        if not each.specifier.contains(held, prereleases=True):
            said.append(f"{each.name} is {held}, wanted is {each.specifier}")
    return said


def _specs(faults: list[str]) -> Iterator[Finding]:
    for each in faults:
        yield fault("spec", each, "`ratchet validate` says what is wrong; other pipelines go on.")
    if not faults:
        yield ok("spec", "every spec can be read")


@dataclass(frozen=True)
class Api:
    """Airflow's REST API at `url`; without a `token` as anybody."""

    url: str
    token: str | None = None

    def get(self, path: str) -> Any:
        """The answer to a GET; raises URLError, and HTTPError for a refusal."""
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        with urlopen(Request(f"{self.url.rstrip('/')}/api/v2/{path}", headers=headers), timeout=PATIENCE) as answer:
            return json.load(answer)


def airflow_checks(api: Api, specs: Iterable[Pipeline]) -> Iterator[Check]:
    """Those of Airflow, and of the DAG of each pipeline."""
    yield Check("airflow", partial(_health, api))
    needs = frozenset({"airflow"})
    yield Check("airflow-version", partial(_version, api), needs=needs)
    yield Check("imports", partial(_imports, api), needs=needs)
    yield Check("dag", partial(_dag, api, MAINTENANCE), needs=needs)
    for spec in specs:
        yield Check("dag", partial(_dag, api, spec.name), spec.name, needs)
        yield Check("pool", partial(_pool, api, spec), spec.name, needs)


def _health(api: Api) -> Iterator[Finding]:
    if not api.url.startswith(("http://", "https://")):
        yield fault("airflow", f"RATCHET_AIRFLOW_URL={api.url} is no address", "Set it to http://HOST:PORT.")
        return
    try:
        found = api.get("monitor/health")
    except (URLError, OSError, ValueError) as error:
        said = f"Airflow at {api.url} does not answer: {error}"
        yield fault("airflow", said, "See that the api-server runs, and that RATCHET_AIRFLOW_URL is right.")
        return
    yield from judged_health(api.url, found)


def judged_health(url: str, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Of {part of Airflow: its health}; a part that is not deployed has no status."""
    ill = [name for name, said in sorted(found.items()) if said.get("status") not in ("healthy", None)]
    for name in ill:
        yield fault("airflow", f"Airflow says that its {name} is not healthy", f"Start the {name} anew.")
    has_triggerer = found.get("triggerer", {}).get("status") is not None
    if not has_triggerer:
        said = "Airflow has no triggerer: a commit that waits for its turn never wakes, and no record starts a run"
        yield fault("airflow", said, "Start one: `airflow triggerer`.")
    if not ill and has_triggerer:
        yield ok("airflow", f"Airflow at {url} is healthy")


def _version(api: Api) -> Iterator[Finding]:
    held = api.get("version")["version"]
    if held == AIRFLOW:
        yield ok("airflow-version", f"Airflow is {held}")
    else:
        said = f"Airflow is {held}, and ratchet is tried with {AIRFLOW}"
        yield warning("airflow-version", said, f"Run Airflow {AIRFLOW}.")


def _imports(api: Api) -> Iterator[Finding]:
    found = _allowed(api, "importErrors", "imports")
    if isinstance(found, Finding):
        yield found
        return
    for each in found["import_errors"]:
        last = (each["stack_trace"].strip().splitlines() or [""])[-1]
        yield fault("imports", f"Airflow cannot import {each['filename']}: {last}", "Correct that file.")
    if not found["import_errors"]:
        yield ok("imports", "Airflow has imported every DAG file")


def _dag(api: Api, name: str) -> Iterator[Finding]:
    found = _allowed(api, f"dags/{quote(name)}", "dag")
    if isinstance(found, Finding):
        yield found
    elif found["is_paused"]:
        yield warning("dag", f"the DAG {name} is paused: no run of it begins", f"Unpause {name} in Airflow.")
    else:
        yield ok("dag", f"the DAG {name} is not paused")


def _pool(api: Api, spec: Pipeline) -> Iterator[Finding]:
    name = str(spec.airflow.default_args.given.get("pool", DEFAULT_POOL))
    found = _allowed(api, f"pools/{quote(name, safe='')}", "pool")
    if isinstance(found, Finding):
        yield found
    elif found["include_deferred"]:
        said = f"pool {name} counts deferred tasks: commits that wait for their turn fill it"
        remedy = "Take Include Deferred from it; else the commit whose turn it is may get no slot."
        yield fault("pool", said, remedy)
    else:
        yield ok("pool", f"pool {name} has {_slots(found['slots'])} slots, and does not count deferred tasks")


def _slots(number: int) -> str:
    return "endless" if number < 0 else f"{number:,}"


def _allowed(api: Api, path: str, code: str) -> Any:
    """The answer, or the finding that there is none."""
    try:
        return api.get(path)
    except HTTPError as error:
        if error.code in (401, 403):
            remedy = "Set RATCHET_AIRFLOW_TOKEN to a token of a user who may read DAGs and pools."
            return warning(code, f"not checked: Airflow refuses /{path} ({error.code})", remedy)
        if error.code == 404:
            remedy = "Make the pool." if code == "pool" else "See broken_specs, and the dag-processor's log."
            return fault(code, f"Airflow has nothing at /{path}", remedy)
        raise
