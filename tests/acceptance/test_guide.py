"""docs/guide.md, followed to the letter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .followed import followed, table

pytestmark = pytest.mark.timeout(600)


@pytest.mark.all
def test_the_guide_works_as_it_is_written(scratch: Path):
    with followed(scratch / "guide", scratch / "guide-stack") as place:
        said = place.run("guide.md", 560)

    assert re.search(r"^1 passed", said["4"], re.MULTILINE)
    assert "orders: orders → jobs.orders:transform over pyspark.sql.DataFrame → orders, turnover" in said["5"]
    assert re.search(r"orders: orders: created .*public\.orders.*, created view orders\n", said["5"])
    assert said["7"].strip() == '"state":"success"'

    rows = table(said["8"])
    orders = [row[:3] + row[5:] for row in rows if len(row) == 6]
    assert orders == [
        ["id", "customer", "amount", "_txid"],
        ["1", "ada", "12.50", "1"],
        ["2", "bob", "3.00", "1"],
        ["3", "ada", "0.99", "1"],
    ]
    assert ["ada", "13.49", "2", "1"] in rows and ["bob", "3.00", "1", "1"] in rows
    errors = {row[3]: row[2] for row in rows if len(row) == 4 and row[0].isdigit()}
    assert errors == {
        '{"id": 4, "amount": 7.00}': "an order without id, customer or amount",
        '{"id": 5, "customer": "eve", "amou': 'the value: found {"id": 5, "customer": "eve", "amou, wanted one JSON '
        "object (Input data was truncated)",
    }
    assert ["1", "COMMITTED", "1", "5", "first"] in rows

    failed, ended = re.findall(r'"state":"(\w+)"', said["9"])
    assert (failed, ended) == ("failed", "success")
    rows = table(said["9"])
    assert ["bob", "7.25", "2", "2"] in rows and ["ada", "13.49", "2", "1"] in rows
    assert ["2", "COMMITTED", "2", "1", "second"] in rows
