"""Keys of every type that a key may have are the same in a destination, and so are the values under them."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from ratchet import DeltaLake, Iceberg, Upsert
from ratchet.operate.migrate import migrate
from ratchet.spec.columns import Column, parse_columns
from tests.proof.reference import shown

from ..staging import SPEC
from .icebergs import IcebergOf
from .keyed_places import KINDS, Place
from .typed import COLUMNS, SCALARS, cells, commit_rows

ROWS = 100
KEYS: list[Column] = [column for column in parse_columns(SCALARS) if not column.floating]
OTHERS = [column for column in parse_columns(COLUMNS) if column.name not in {key.name for key in KEYS}]


def key_of(dice: random.Random) -> dict[str, Any]:
    """A key with a cell of each type."""
    found: dict[str, Any] = {}
    while len(found) < len(KEYS):
        made = cells(dice)
        found |= {key.name: made[key.name] for key in KEYS if made[key.name] is not None}
    return found


def values_of(dice: random.Random) -> dict[str, Any]:
    made = cells(dice)
    return {column.name: made[column.name] for column in OTHERS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.invariant("I1")
def test_keys_and_values_of_every_type_are_there_as_they_are_here(bare, log, elsewhere, tmp_path, kind):
    place = Place.of(kind, elsewhere, tmp_path)
    key = ", ".join(f"{column} not null" for column in KEYS)
    columns = f"ord bigint, {', '.join(map(str, OTHERS))}"
    sink = Upsert("typed_rows", key=key, columns=columns, order="ord", to=place.to)
    sizes = {"name": "typed", "max_records": ROWS, "slice_records": ROWS, "sinks": [sink]}
    spec = SPEC.model_copy(update=sizes)
    migrate(bare.url, [spec])
    with psycopg.connect(bare.url) as conn:
        # What a session shows of a value is no part of it.
        for said in ("extra_float_digits = -10", "timezone = 'Pacific/Auckland'"):
            conn.execute(f"alter database {conn.info.dbname} set {said}")  # pyright: ignore[reportArgumentType]
    bare.engine.dispose()
    dice = random.Random(11)
    keys = [key_of(dice) for _ in range(ROWS)]
    log.beginning, given = {0: 0}, []
    for number, run in enumerate("ab"):
        log.stable = {0: ROWS * (number + 1)}
        made = [{**key, **values_of(dice), "ord": number, "_deleted": False} for key in keys]
        made[0] |= {"f": math.nan, "d": -math.inf}
        for row in made[: 20 * number]:
            row.update(dict.fromkeys([column.name for column in OTHERS]), _deleted=True)
        log_of = spec, log, made, lambda to, owner: to.open(owner, place.by)
        given = commit_rows(bare, *log_of, run, ROWS * number)
    if kind == "table":
        query = "select {} from {} order by _offset"
        names = ", ".join(f"{name}::text" for name in shown(sink))
        with psycopg.connect(bare.url, options="-c extra_float_digits=1 -c timezone=UTC") as conn:
            here = conn.execute(query.format(names, "typed_rows")).fetchall()  # pyright: ignore[reportArgumentType]
        assert elsewhere.ask(query.format(names, "latest_there")) == here and len(here) == ROWS - 20
        return
    found = {
        DeltaLake: lambda: DeltaTable(place.to.name).to_pyarrow_table(),
        Iceberg: lambda: IcebergOf(bare, json.loads(place.by), log, name=place.to.name).table(),
    }[type(place.to)]().sort_by("_offset")
    given = given.slice(20)
    assert found.num_rows == given.num_rows == ROWS - 20
    for name in [*(column.name for column in (*KEYS, *OTHERS)), "ord", "_offset"]:
        if name in ("j", "aj") or (kind == "iceberg" and name == "st"):
            # A document is what PostgreSQL has made of it; of the structs the library reads some otherwise.
            continue
        # -0.0 is told from 0.0, and NaN is like NaN.
        assert list(map(repr, found[name].to_pylist())) == list(map(repr, given[name].to_pylist())), name
