"""What files take and refuse; readers find values there as they were."""

from __future__ import annotations

import csv
import json
import math
import random
from datetime import date
from decimal import Decimal

import pandas as pd
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet import Append, Csv, DeltaLake, Files, Json
from ratchet.destinations import file_writers
from ratchet.destinations.port import Mark
from ratchet.errors import DestinationRefused, SpecError
from ratchet.formats.port import Use
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate

from ..staging import appended
from .lakes import Where
from .trees import FilesOf
from .typed import COLUMNS, cells, commit_rows

ROWS = 200
DOCUMENTS = "j", "aj", "m", "st"


@pytest.fixture
def files(bare, log, tmp_path) -> FilesOf:
    made = FilesOf(bare, Where(str(tmp_path / "files" / "rows")), log)
    migrate(bare.url, [made.spec])
    return made


def typed(files: FilesOf, form: str, *, infinite: bool) -> tuple[pa.Table, bytes]:
    """Rows of every type, as they were given, and the one file that has them."""
    files.log.beginning, files.log.stable = {0: 0}, {0: ROWS}
    to = Files(str(files.path.parent / "typed"), format=form)
    spec = files.spec.model_copy(update={"name": "typed", "max_records": ROWS, "slice_records": ROWS})
    spec = spec.model_copy(update={"sinks": [Append("typed_rows", columns=COLUMNS, to=to)]})
    migrate(files.ledger.url, [spec])
    with psycopg.connect(files.ledger.url) as conn:
        # What a session shows of a value is no part of it.
        for said in ("extra_float_digits = -10", "timezone = 'Pacific/Auckland'", "bytea_output = 'escape'"):
            conn.execute(f"alter database {conn.info.dbname} set {said}")  # pyright: ignore[reportArgumentType]
    files.ledger.engine.dispose()
    dice = random.Random(11)
    made = [cells(dice) for _ in range(ROWS)]
    if infinite:
        made[0] |= {"f": math.nan, "d": -math.inf}
        made[1] |= {"f": math.inf, "d": math.nan}
    given = commit_rows(files.ledger, spec, files.log, made, files.opens)
    (path,) = (files.path.parent / "typed").glob(f"data/ratchet_version=1/*/*.{form}")
    return given, path.read_bytes()


def check(found: pa.Table, given: pa.Table) -> None:
    assert found.num_rows == ROWS
    for name in given.schema.names:
        if name not in DOCUMENTS and not name.startswith("_"):
            assert found.schema.field(name).type == given.schema.field(name).type, name
            # -0.0 is told from 0.0, and NaN is like NaN.
            assert list(map(repr, found[name].to_pylist())) == list(map(repr, given[name].to_pylist())), name
    assert found["st"].to_pylist() == given["st"].to_pylist()
    documents = {'{"a": 1, "ab": [1.50, null, "é"]}', "[]", '"null"', "100", "false", None}
    assert set(found["j"].to_pylist()) == documents


@pytest.mark.invariant("I1")
def test_parquet_has_values_of_every_type(files):
    given, held = typed(files, "parquet", infinite=True)
    check(pq.read_table(pa.BufferReader(held)).sort_by("_offset"), given)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("form", ["csv", "json"])
def test_text_is_read_back_as_it_was_by_the_format_of_the_same_columns(files, form):
    given, held = typed(files, form, infinite=False)
    if form == "csv":
        (header, _) = held.split(b"\n", 1)
        assert next(csv.reader([header.decode()])) == [
            *given.schema.names[:-3],
            "_source",
            *given.schema.names[-3:],
            "_txid",
        ]
        declared, values = Csv(COLUMNS, rows="lines", header=True), [held]
    else:
        declared, values = Json(COLUMNS), held.splitlines()
        assert all(json.loads(line)["_txid"] == 1 for line in values)
    decoded = declared.decoder(Use()).decode(pa.array(values, pa.binary()))
    assert set(decoded.errors.to_pylist()) == {None}
    check(pa.Table.from_batches([decoded.columns]), given)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_a_text_does_not_hold_is_refused(files, form):
    with pytest.raises(
        DestinationRefused, match=f"column . has a value that {form.upper()} does not hold .NaN, .*Parquet"
    ):
        typed(files, form, infinite=True)
    assert not list((files.path.parent / "typed").glob("data/*"))


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_files_are_divided_by_columns_that_they_then_lack(bare, log, tmp_path, form, monkeypatch):
    # Fewer files are open than there are directories, and little is held.
    monkeypatch.setattr(file_writers, "_OPEN", 2)
    monkeypatch.setattr(file_writers, "_HELD", 0)
    more = {"format": form, "partition_by": ("b", "d", "t")}
    files = FilesOf(bare, Where(str(tmp_path / "rows")), log, "a int, b string, d date, t boolean", more)
    migrate(bare.url, [files.spec])
    texts, days = ["a/b", "a=b", "100%", "é\n", "..", "\ufeff", None], [date(1, 1, 1), date(9999, 12, 31), None]

    def of(at):
        o = at["_offset"]
        return {"a": o, "b": texts[o % 7], "d": days[o % 3], "t": o % 2 == 0}

    files.run("a", of=of)
    assert any("/b=100%25/d=" in path for path in files.seen())
    assert any("/b=__HIVE_DEFAULT_PARTITION__/d=" in path for path in files.seen())
    assert sum(written.rows for written in files.record(1).files) == len(appended(bare))
    if form != "parquet":
        # Another reader takes each text for what it looks like.
        return
    assert files.rows() == appended(bare)
    found = files.table().select(["_offset", "a", "b", "d", "t"]).to_pylist()
    assert all(row["a"] == row["_offset"] for row in found)
    held = [(row["b"], row["d"], row["t"]) for row in found]
    expected = [of(row) for row in found]
    assert held == [(row["b"], row["d"] and str(row["d"]), str(row["t"]).lower()) for row in expected]
    first = pq.read_table(files.data / files.seen()[0])
    assert first.column_names == ["a", "_source", "_partition", "_offset", "_n", "_txid"]


@pytest.mark.parametrize(("text", "said"), [("", "has an empty text"), ("x" * 300, "has a text of 300 characters")])
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_text_that_no_directory_is_called_is_refused(bare, log, tmp_path, text, said, form):
    files = FilesOf(bare, Where(str(tmp_path / "rows")), log, "a int, b string", {"partition_by": "b", "format": form})
    migrate(bare.url, [files.spec])
    with pytest.raises(DestinationRefused, match=f"column b, by which the files are divided, {said}"):
        files.run("a", of=lambda at: {"a": 1, "b": text})
    assert files.seen() == files.hidden("incoming") == [] and files.mark().step == 0


@pytest.mark.invariant("I1")
def test_a_step_of_many_batches_arrives_wholly_and_in_few_files(bare, log, tmp_path):
    files = FilesOf(bare, Where(str(tmp_path / "rows")), log, "a bigint, b string")
    migrate(bare.url, [files.spec])
    files.run("a", of=lambda at: {"a": 1, "b": f"{at['_offset']}" * 60_000})
    assert files.rows() == appended(bare) != [] and len(files.seen()) == 1
    assert all(row["b"] == f"{row['_offset']}" * 60_000 for row in files.table().to_pylist())


@pytest.mark.invariant("I1")
def test_csv_is_what_others_read(bare, log, tmp_path):
    files = FilesOf(bare, Where(str(tmp_path / "rows")), log, "b string, n decimal(38,18)", {"format": "csv"})
    migrate(bare.url, [files.spec])
    texts, least = ["\ufeffabc", "\\.", 'a"b', "a,b", "a\r\nb", "\n", "\\N", " ", "0", "", None], Decimal("1e-18")
    files.run("a", of=lambda at: {"b": texts[at["_offset"] % 11], "n": least})
    found = pd.concat(pd.read_csv(files.data / path, dtype=str, keep_default_na=False) for path in files.seen())
    assert list(found["b"]) == [texts[int(offset) % 11] or "" for offset in found["_offset"]]
    assert set(found["n"]) == {"0.000000000000000001"}


@pytest.mark.invariant("I1")
def test_a_column_that_is_added_is_in_new_files(files):
    files.run("a")
    files.columns = "a bigint, b string"
    migrate(files.ledger.url, [files.spec])
    files.run("b", of=lambda at: {"a": 1, "b": f"b{at['_offset']}"})
    assert files.rows() == appended(files.ledger)
    assert files.record(2).layout.columns == {"a": "bigint", "b": "string"}
    files.columns = "a bigint"
    files.run("c")
    # What files from before have is not forgotten.
    assert files.record(3).layout.columns == {"a": "bigint", "b": "string"}


def test_files_that_one_reader_cannot_read_together_are_refused(files):
    files.columns = "a bigint, b int"
    migrate(files.ledger.url, [files.spec])
    files.run("a", of=lambda at: {"a": 1, "b": 2})
    before = files.seen()
    files.more = {"partition_by": "b"}
    with pytest.raises(DestinationRefused, match="is divided by nothing, not by b"):
        files.run("b", of=lambda at: {"a": 1, "b": 2})
    assert files.seen() == before and files.mark().step == 1


def test_a_column_that_differs_in_case_alone_is_refused(files):
    files.run("a")
    files.columns = "a bigint, B int"
    migrate(files.ledger.url, [files.spec])
    files.run("b", of=lambda at: {"a": 1, "B": 2})
    files.columns = "a bigint, b int"
    migrate(files.ledger.url, [files.spec])
    before = files.seen()
    with pytest.raises(DestinationRefused, match="has a column B, and b differs from it only in case"):
        files.run("c", of=lambda at: {"a": 1, "b": 2})
    assert files.seen() == before and files.mark().step == 2


@pytest.mark.invariant("I1")
def test_another_format_is_written_anew(files):
    files.run("a")
    files.more = {"format": "csv"}
    with pytest.raises(DestinationRefused, match=r"has files in parquet, not in csv; .*attach --anew"):
        files.run("b")
    detach(files.ledger, "line", files.address, "for the test", "me")
    attach(files.ledger, files.spec, files.address, How.ANEW, "for the test", "me", files.opens)
    assert files.rows() == appended(files.ledger) and {path[-4:] for path in files.seen()} == {".csv"}
    files.run("c")
    assert files.rows() == appended(files.ledger)


def test_a_directory_that_has_something_of_somebody_else_is_refused(files):
    files.path.mkdir(parents=True)
    (files.path / "mine.parquet").touch()
    with pytest.raises(DestinationRefused, match=r"has mine.parquet already, and is no directory of this pipeline"):
        files.run("a")
    # Nor is it touched by an attach.
    detach(files.ledger, "line", files.address, "for the test", "me")
    with pytest.raises(DestinationRefused, match=r"has mine.parquet already"):
        attach(files.ledger, files.spec, files.address, How.ANEW, "for the test", "me", files.opens)
    assert [path.name for path in files.path.iterdir()] == ["mine.parquet"]


def test_a_directory_of_another_pipeline_is_refused(files):
    with files.open("other") as other:
        other.start(Mark(0, 1))
    with pytest.raises(DestinationRefused, match="is a destination of other: rows already"):
        files.run("a")
    assert files.seen() == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"name": "s3://lake/orders"}, "an object store shows files one by one, .* use DeltaLake there"),
        ({"name": "lake/orders"}, "is no absolute path of a directory"),
        ({"name": "/lake/a%20b"}, "has no '%'"),
        ({"name": "/lake/a", "format": "orc"}, "Files.format"),
    ],
)
def test_what_is_no_directory_of_files_is_refused(given, error):
    with pytest.raises(SpecError, match=error):
        Files(**given)


@pytest.mark.parametrize(
    ("columns", "more", "error"),
    [
        ("a bigint", {"partition_by": "b"}, "partition_by 'b' is not one of columns: a"),
        ("a bigint, l array<int>", {"partition_by": "l"}, "does not hold values of type array<int>"),
        ("a bigint", {"partition_by": "a"}, "names every column"),
        ("a bigint, ratchet_txid int", {}, "directories are called so; name the column otherwise"),
        ("a bigint, l array<timestamp(millis)>", {"format": "csv"}, "declare it a timestamp"),
    ],
)
def test_columns_that_files_cannot_be_given_are_refused(columns, more, error):
    with pytest.raises(SpecError, match=error):
        Append("rows", columns=columns, to=Files("/lake/orders", **more))


def test_one_directory_of_files_has_one_address():
    assert Files("//lake//orders/").address == Files("/lake/orders").address == "files:/lake/orders"
    assert DeltaLake("/lake/orders").address != Files("/lake/orders").address
