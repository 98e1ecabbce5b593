"""`ratchet verify --destinations`: rows are counted where they were sent, and held against what was committed."""

from __future__ import annotations

import pytest

from ratchet.destinations.elsewhere import Elsewhere as Outside
from ratchet.ledger.connection import Ledger
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.operate.tally import tally

from ..running import here
from .counting import counted
from .elsewhere import SENT, Elsewhere, revise, sent, without
from .icebergs import IcebergOf
from .lakes import LakeOf, Where
from .test_detach import ADDRESS
from .trees import FilesOf

ALL = f"{ADDRESS}: rows of transactions 1 to 2"


def test_rows_that_somebody_took_away_or_added_are_told(ledger, log, elsewhere):
    for run in ("a", "b"):
        sent(ledger, elsewhere, log, run)
    assert counted(ledger, SENT, elsewhere.opens) == {ALL: (40, [])}
    elsewhere.ask("delete from copied where _txid = 1 and _offset < 3")
    elsewhere.ask("insert into copied (a, _txid, _source, _partition, _offset, _n) values (1, 9, 1, 0, 0, 0)")
    # What is a person's own is none of ours.
    elsewhere.ask("alter table copied drop constraint copied_pkey")
    elsewhere.ask("alter table copied alter _txid drop not null, alter _source drop not null")
    elsewhere.ask("insert into copied (a, _partition, _offset, _n) values (1, 0, 0, 0)")
    gone = 20 - len(elsewhere.ask("select 1 from copied where _txid = 1"))
    faults = [
        f"{ADDRESS} has {20 - gone} rows of transaction 1, and 20 are committed",
        f"{ADDRESS} has 1 row of transaction 9, and 0 are committed",
    ]
    assert gone and counted(ledger, SENT, elsewhere.opens) == {ALL: (40, faults)}
    left_out = f"{ADDRESS}: rows of transactions 2 to 2; 1 to 1 are left out"
    assert counted(ledger, SENT, elsewhere.opens, since=2) == {left_out: (20, faults[1:])}


def test_a_revision_counts_in_place_of_what_it_has_replaced(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    revise(ledger, elsewhere, log, "a", 1, drop=2)
    (found,) = counted(ledger, SENT, elsewhere.opens).values()
    assert found[0] < 20 and found[1] == []


def test_what_came_otherwise_is_left_out(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    detach(ledger, "line", ADDRESS, "moved", "me")
    assert counted(ledger, SENT, elsewhere.opens) == {f"{ADDRESS}: it is detached, and not counted": (0, [])}
    without(ledger, log, "b")
    attach(ledger, SENT, ADDRESS, How.FROM_HERE, "back", "me", elsewhere.opens)
    sent(ledger, elsewhere, log, "c")
    only = f"{ADDRESS}: rows of transactions 3 to 3; 1 to 2 are left out"
    assert counted(ledger, SENT, elsewhere.opens) == {only: (20, [])}


def test_a_destination_that_is_new_is_counted_from_its_first_step(bare, log, elsewhere):
    plain = SENT.model_copy(update={"sinks": [SENT.sinks[0].model_copy(update={"to": ()}), *SENT.sinks[1:]]})
    migrate(bare.url, [plain])
    sent(bare, elsewhere, log, "a", plain)
    migrate(bare.url, [SENT])
    assert counted(bare, SENT, elsewhere.opens) == {f"{ADDRESS}: nothing was sent yet": (0, [])}
    sent(bare, elsewhere, log, "b")
    only = f"{ADDRESS}: rows of transactions 2 to 2; 1 to 1 are left out"
    assert counted(bare, SENT, elsewhere.opens) == {only: (20, [])}


def test_one_that_cannot_be_asked_is_a_fault_and_one_that_lacks_steps_is_not_counted(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    away = Elsewhere(f"{elsewhere.url}_that_is_away")
    ((_, (rows, faults)),) = counted(ledger, SENT, away.opens).items()
    assert rows == 0 and len(faults) == 1 and faults[0].startswith("line: rows: warehouse:copied: ")
    without(ledger, log, "b")
    assert counted(ledger, SENT, elsewhere.opens) == {f"{ADDRESS}: it lacks steps, and is not counted": (0, [])}


def test_what_is_sent_meanwhile_is_counted_with_the_rest(ledger, log, elsewhere, monkeypatch):
    sent(ledger, elsewhere, log, "a")
    count, runs = Outside.counted, iter("bc")

    def counts(self):
        found = count(self)
        for run in runs:
            sent(ledger, elsewhere, log, run)
            break
        return found

    monkeypatch.setattr(Outside, "counted", counts)
    assert counted(ledger, SENT, elsewhere.opens) == {f"{ADDRESS}: rows of transactions 1 to 3": (60, [])}


def test_one_that_never_rests_is_said_not_to_be_counted(ledger, log, elsewhere, monkeypatch):
    sent(ledger, elsewhere, log, "a")
    count, runs = Outside.counted, iter("bcdefgh")
    monkeypatch.setattr(Outside, "counted", lambda self: (count(self), sent(ledger, elsewhere, log, next(runs)))[0])
    said = f"{ADDRESS}: it takes one step after the other, and was not counted"
    assert counted(ledger, SENT, elsewhere.opens) == {said: (0, [])}


@pytest.fixture(params=["lake", "files", "iceberg"])
def kept(request, bare, log, tmp_path) -> LakeOf | FilesOf | IcebergOf:
    """A line that goes to files of each kind."""
    match request.param:
        case "lake":
            return request.getfixturevalue("on_disk")
        case "files":
            made = FilesOf(bare, Where(str(tmp_path / "files" / "rows")), log)
            migrate(bare.url, [made.spec])
            return made
        case _:
            return request.getfixturevalue("in_postgresql")


def test_files_of_each_kind_are_counted(kept):
    for run in ("a", "b"):
        kept.run(run)
    kept.run("a", 1, drop=1)
    (check,) = tally(kept.ledger, kept.spec, kept.opens)
    assert check.checked == len(kept.rows()) > 30 and check.faults == ()
    match kept:
        case FilesOf():
            next(kept.data.rglob("ratchet_txid=2/*")).unlink()
        case LakeOf():
            kept.delta().delete("_txid = 2")
        case _:
            kept.loaded().delete("_txid = 2")
    (check,) = tally(kept.ledger, kept.spec, kept.opens)
    assert [fault.split(" has ")[1] for fault in check.faults] == ["0 rows of transaction 2, and 20 are committed"]


def test_the_command_counts_where_it_is_asked_to(ledger: Ledger, log, elsewhere: Elsewhere):
    sent(ledger, elsewhere, log, "a")
    env = {
        "RATCHET_LEDGER_URL": ledger.url,
        "RATCHET_PIPELINES": "tests.ledger.destinations.pipelines",
        "RATCHET_CONNECTIONS": f'{{"warehouse": {{"url": "{elsewhere.url}"}}}}',
    }
    done = here(["verify", "line", "--destinations"], env)
    assert done[0] == 0 and f"ok    {ADDRESS}: rows of transactions 1 to 1: 20 checked" in done[1]
    assert ADDRESS not in here(["verify", "line"], env)[1]
    elsewhere.ask("delete from copied")
    done = here(["verify", "line", "--destinations"], env)
    assert done[0] == 3 and f"{ADDRESS} has 0 rows of transaction 1, and 20 are committed" in done[1]
