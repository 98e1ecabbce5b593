"""docs/tutorial.md, followed to the letter, without the demo's pipelines and the browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .followed import followed, table

pytestmark = pytest.mark.timeout(600)


@pytest.mark.all
def test_the_tutorial_works_as_it_is_written(scratch: Path):
    with followed(scratch / "tutorial", scratch / "tutorial-stack") as place:
        said = place.run("tutorial.md", 560)

    assert "created ratchet_delta.public.payments" in said["4"]
    assert re.search(r"^1 passed", said["5"], re.MULTILINE)
    assert "payments: 3 rows" in said["5"] and "dead_letters: no rows" in said["5"]
    assert '"state":"success"' in said["6"] and "transaction 1 is COMMITTED" in said["6"]
    assert table(said["6"])[-3:] == [
        ["customer", "euros_sum", "payments", "_txid"],
        ["ada", "13.49", "2", "1"],
        ["bob", "27.60", "1", "1"],
    ]
    assert '"state":"failed"' in said["7"] and "raised KeyError: 'GBP'" in said["7"]
    assert "HALTED: payments is halted at transaction 2" in said["7"] and "RAT-501 TransformError" in said["7"]
    assert "transaction 2 is VOIDED, gives up 2 records at most, and commits nothing" in said["7"]
    assert "nothing was changed" in said["7"]
    assert "transaction 2 is OPEN and may be tried again" in said["8"]
    assert "no rate for GBP" in said["9"]
    assert "transaction 2: of 1 dead letter 1 would take effect" in said["9"]
    assert "a release of 1 dead letter of transaction 2 is asked for" in said["9"]
    assert table(said["9"])[-3:] == [
        ["ada", "13.49", "2", "1"],
        ["bob", "32.60", "2", "2"],
        ["eve", "9.36", "1", "2"],
    ]
    assert "spent: 0 added, 0 removed, 1 changed" in said["10"] and "32.90" in said["10"]
    assert "FAULT" not in said["11"] and "ok    recomputed transactions: 1 checked" in said["11"]
