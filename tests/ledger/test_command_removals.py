"""`ratchet prune`, `erase` and `drop` as a person uses them."""

from __future__ import annotations

import json

from benchmarks.past import grow
from ratchet.ledger.schema import pipelines
from ratchet.ledger.states import State

from .staging import appended, committed, state


def test_a_line_is_pruned_and_a_history_that_is_gone_is_said_to_be(ledger, log, ratchet):
    committed(ledger, log, "a")
    assert ratchet("prune", "line")[0] == 2
    status, _, err = ratchet("prune", "line", "--reason", "large")
    assert status == 1 and "error RAT-403: line: no transaction after 0 can be pruned" in err
    # The newest thousand stay.
    grow(ledger.url, "line", 1_002)
    with ledger.begin() as conn:
        conn.execute(pipelines.update().values(compacted=10, merged=10))
    status, out, _ = ratchet("prune", "line", "--reason", "large", "--dry-run")
    assert status == 0 and "nothing was changed" in out and state(ledger, 1) == State.COMMITTED
    status, out, _ = ratchet("prune", "line", "--reason", "large", "--json")
    answer = json.loads(out)
    assert status == 0 and "transactions 1 to 2 are pruned" in answer.pop("said")[0]
    rows = {"events": 16, "ranges": 4, "slices": 4, "transactions": 2}
    assert answer == {"pipeline": "line", "first": 1, "last": 2, "rows": rows, "dry_run": False}
    assert ratchet("history", "line", "2") == (0, "", "transaction 2 is pruned from the ledger\n")
    assert ratchet("verify", "line", "--since", "1")[1].startswith("ok    transactions 3 to 1002; 1 to 2 are taken as")


def test_rows_are_erased_when_a_person_has_said_why_and_yes(ledger, log, ratchet):
    committed(ledger, log, "a")
    asked = ("erase", "line", "rows", "a=3")
    assert ratchet(*asked, "--yes")[0] == 2
    status, _, err = ratchet(*asked, "--reason", "a letter")
    assert status == 1 and "Delete the rows of rows with these values in a?" in err
    status, out, _ = ratchet(*asked, "--reason", "a letter", "--dry-run")
    assert status == 0 and "nothing was changed" in out and len(appended(ledger)) == 20
    status, out, _ = ratchet(*asked, "--reason", "a letter", "--yes", "--json")
    answer = json.loads(out)
    assert answer.pop("said") == ["line: rows: 2 rows of transaction 1 are erased; none of these is revised any more"]
    assert answer == {
        "pipeline": "line",
        "sink": "rows",
        "columns": ["a"],
        "rows": {"1": 2},
        "head": 1,
        "beyond": 0,
        "dry_run": False,
    }
    assert len(appended(ledger)) == 18 and ratchet("verify", "line")[0] == 0
    status, out, _ = ratchet(*asked, "--reason", "a letter", "--yes")
    assert (status, out) == (0, "line: rows: up to transaction 1 no row has these values in a\n")
    assert "erase by " in ratchet("history", "line", "1")[1]


def test_a_line_is_dropped_when_a_person_has_said_why_and_yes(ledger, log, ratchet):
    committed(ledger, log, "a")
    assert ratchet("drop", "line", "--yes")[0] == 2
    status, out, err = ratchet("drop", "line", "--reason", "moved")
    assert (status, out.strip()) == (1, "") and "Drop all tables and the history of line?" in err
    status, out, _ = ratchet("drop", "line", "--reason", "moved", "--dry-run")
    assert status == 0 and "nothing was changed" in out and state(ledger, 1) == State.COMMITTED
    status, out, _ = ratchet("drop", "line", "--reason", "moved", "--yes", "--json")
    answer = json.loads(out)
    assert status == 0 and "dropped line line: 1 transaction, " in answer.pop("said")[-1]
    assert "ratchet_delta.public.rows" in answer.pop("relations")
    assert answer == {
        "pipeline": "line",
        "last_txid": 1,
        "head": 1,
        "left": [],
        "stages": 0,
        "dead_letters": 0,
        "dry_run": False,
    }
    status, _, err = ratchet("drop", "line", "--reason", "moved", "--yes")
    assert (status, err) == (1, "error RAT-403: the ledger has nothing of pipeline line\n")
