"""Where a record is, where a row comes from, and what the dead letters are, in every kind of sink."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text, update

from ratchet import Append
from ratchet.errors import SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import pipelines, transactions
from ratchet.operate.actions import accept_loss, void
from ratchet.operate.migrate import migrate
from ratchet.operate.snapshot import letters
from ratchet.operate.snapshot.letters import counts, each
from ratchet.operate.snapshot.places import Unknown, origins, where
from ratchet.operate.upkeep import clean
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import RICH

from .staging import SPEC, committed, do, prepare, start

WHEN = datetime(2013, 1, 1, 5, tzinfo=UTC)


def sinks_of(place) -> dict[str, tuple]:
    return {found.sink: (found.rows, found.unknown) for found in place.sinks}


def test_a_record_is_found_with_its_rows_in_each_sink_that_names_records(ledger, log):
    log.stable = {0: 200, 1: 200}
    for run in "ab":
        committed(ledger, log, run)
    (place,) = where(ledger, SPEC, 1, 13).places
    assert (place.txid, place.revision, place.state, place.source, place.topic) == (2, 0, "COMMITTED", 1, "t")
    assert (place.from_offset, place.until_offset, place.lost_why) == (10, 20, None)
    at = {"_partition": 1, "_offset": 13, "_n": 0}
    assert sinks_of(place) == {
        "rows": (({"a": 13, **at},), None),
        "totals": ((), Unknown.COMBINED),
        "latest": (({"k": "1-3", "a": 13, "_deleted": False, **at},), None),
        DEAD_LETTERS: ((), None),
    }


def test_a_record_that_was_not_planned_is_in_no_transaction_and_it_is_said_where_plans_end(ledger, log):
    assert where(ledger, SPEC, 0, 0).planned_until is None
    committed(ledger, log, "a")
    beyond = where(ledger, SPEC, 0, 10)
    assert (beyond.places, beyond.planned_from, beyond.planned_until) == ((), 0, 10)
    assert where(ledger, SPEC, 0, 9).places[0].txid == 1
    assert where(ledger, SPEC, 7, 0).planned_until is None


def test_rows_that_nobody_sees_yet_are_not_shown_and_those_of_a_revision_only_once_it_is_committed(ledger, log):
    log.stable = {0: 200, 1: 200}
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    (place,) = where(ledger, SPEC, 0, 3).places
    assert place.state == "PREPARED" and {of[1] for of in sinks_of(place).values()} == {Unknown.NOT_COMMITTED}
    commit(ledger, SPEC, begun.claim)
    again = start(ledger, SPEC, log, "a", 1)
    do(ledger, SPEC, again, lambda p, o: {"rows": [{"a": -o}]})
    (place,) = where(ledger, SPEC, 0, 3).places
    assert (place.revision, sinks_of(place)["rows"][0][0]["a"]) == (0, 3)
    commit(ledger, SPEC, again.claim)
    (place,) = where(ledger, SPEC, 0, 3).places
    assert (place.revision, sinks_of(place)["rows"][0][0]["a"]) == (1, -3)
    assert sinks_of(place)["latest"] == ((), Unknown.REPLACED)


def test_a_record_that_a_person_gave_up_says_why(ledger, log):
    log.stable = {0: 200, 1: 200}
    start(ledger, SPEC, log, "a")
    log.beginning[1] = 4
    accept_loss(ledger, SPEC, log.offsets, "retention", "me")
    assert where(ledger, SPEC, 1, 3).places[0].lost_why == "retention"
    assert where(ledger, SPEC, 1, 4).places[0].lost_why is None
    void(ledger, SPEC, 1, "bad file", "me")
    (place,) = where(ledger, SPEC, 1, 4).places
    assert place.state == "VOIDED" and sinks_of(place)["rows"] == ((), Unknown.NOT_COMMITTED)


def test_an_offset_that_two_sources_have_is_in_a_transaction_of_each(ledger, log):
    committed(ledger, log, "a")
    log.topic_id, log.stable = "second", {0: 15, 1: 15}
    accept_loss(ledger, SPEC, log.offsets, "made again", "me")
    committed(ledger, log, "b")
    found = where(ledger, SPEC, 0, 3).places
    assert [(p.source, p.txid) for p in found] == [(1, 1), (2, 2)]
    assert all(sinks_of(p)["rows"][0][0]["a"] == 3 for p in found)


def test_merged_and_expired_rows_are_said_to_be_so(ledger_url, log):
    spec = RICH.model_copy(
        update={"sinks": [Append("kept", columns="a bigint", keep=timedelta(days=1)), RICH.sinks[2]]}
    )
    migrate(ledger_url, [spec])
    log.stable = {0: 6, 1: 6}
    with Ledger(ledger_url) as ledger:
        begun = start(ledger, spec, log, "a")
        one = {"kept": [{"a": 1}], "rich_latest": [{"k": "x", "a": 1, "_deleted": False}]}
        do(ledger, spec, begun, lambda p, o: one if p == 0 else {"kept": [{"a": 1}]})
        commit(ledger, spec, begun.claim)
        with ledger.begin() as conn:
            conn.execute(update(transactions).values(committed_at=transactions.c.committed_at - timedelta(days=2)))
        list(clean(ledger, spec))
        (place,) = where(ledger, spec, 0, 2).places
        assert sinks_of(place) == {
            "kept": ((), Unknown.EXPIRED),
            "rich_latest": ((), Unknown.MERGED),
            DEAD_LETTERS: ((), None),
        }


def test_rows_of_a_table_of_ones_own_are_found_as_well(ledger_url, log):
    spec = SPEC.model_copy(update={"sinks": [Append("mine", columns="a bigint", existing=True)]})
    with Ledger(ledger_url) as ledger:
        with ledger.begin() as conn:
            hidden = "_topic text not null, _partition int not null, _offset bigint not null, _n int not null"
            conn.execute(text(f"create table mine (a bigint, {hidden}, _txid bigint not null)"))
        migrate(ledger_url, [spec])
        begun = start(ledger, spec, log, "a")
        do(ledger, spec, begun, lambda p, o: {"mine": [{"a": o}]})
        commit(ledger, spec, begun.claim)
        assert sinks_of(where(ledger, spec, 1, 4).places[0])["mine"][0][0]["a"] == 4
        assert [(m.partition, m.offset) for m in origins(ledger, spec, "mine", {"a": "4"}).made] == [(0, 4), (1, 4)]


def test_a_row_comes_from_the_records_that_it_names_or_from_all_of_its_transactions(ledger, log):
    log.stable = {0: 200, 1: 200}
    for run in "ab":
        committed(ledger, log, run)
    hidden = start(ledger, SPEC, log, "c")
    prepare(ledger, SPEC, hidden)
    made = origins(ledger, SPEC, "rows", {"a": "13"}).made
    assert [(m.txid, m.topic, m.partition, m.offset) for m in made] == [(2, "t", 0, 13), (2, "t", 1, 13)]
    assert origins(ledger, SPEC, "rows", {"a": "25"}).made == (), "a row above the head is nobody's yet"
    found = origins(ledger, SPEC, "latest", {"k": "1-3"})
    assert [(m.txid, m.partition, m.offset) for m in found.made] == [(1, 1, 3), (1, 1, 8), (2, 1, 13), (2, 1, 18)]
    found = origins(ledger, SPEC, "totals", {"k": "0"})
    assert [(m.txid, m.offset) for m in found.made] == [(1, None), (2, None)] and not found.more
    with ledger.begin() as conn:
        conn.execute(update(pipelines).values(compacted=1))
    assert origins(ledger, SPEC, "totals", {"k": "0"}).merged == 1


def test_no_more_places_are_told_than_a_person_can_read(ledger, log, monkeypatch):
    monkeypatch.setattr("ratchet.operate.snapshot.places.MOST", 3)
    committed(ledger, log, "a")
    found = origins(ledger, SPEC, "rows", {"_partition": "0"})
    assert len(found.made) == 3 and found.more


@pytest.mark.parametrize(
    ("sink", "key", "said"),
    [
        ("none", {"a": "1"}, "there is no sink 'none'; it has rows, totals, latest, dead_letters"),
        ("rows", {"b": "1"}, "rows has no column 'b' to look by; it has a, _partition, _offset, _n, _txid"),
        ("rows", {"a": "one"}, "a value is none of its column's type"),
        ("latest", {"a": "1"}, "latest has no column 'a' to look by; it has k"),
        ("rows", {}, "rows is looked up by its whole key"),
    ],
)
def test_what_cannot_be_looked_up_is_refused(ledger, log, sink, key, said):
    committed(ledger, log, "a")
    with pytest.raises(SettingsError, match=said):
        origins(ledger, SPEC, sink, key)


def test_a_search_that_takes_too_long_ends(ledger, log):
    committed(ledger, log, "a")
    with ledger.begin() as conn:
        conn.execute(text('lock table ratchet_delta."public.rows"'))
        with pytest.raises(SettingsError, match="took longer than 0.2 s"):
            origins(ledger, SPEC, "rows", {"a": "1"}, seconds=0.2)


def dead(ledger, log, run: str, letter) -> int:
    """A committed transaction whose records are dead letters as `letter` makes them of their positions."""
    begun = start(ledger, SPEC, log, run)
    do(ledger, SPEC, begun, lambda p, o: {DEAD_LETTERS: [{"timestamp": WHEN, "headers": None, **letter(p, o)}]})
    commit(ledger, SPEC, begun.claim)
    return begun.claim.txid


@pytest.fixture
def with_letters(ledger, log):
    """Two transactions of 20 letters each, of two reasons, and a third that nobody sees yet."""
    log.stable = {0: 200, 1: 200}
    for run in "ab":
        dead(ledger, log, run, lambda p, o: {"key": b"k", "value": b"%d" % o, "error": "odd" if o % 2 else "even"})
    begun = start(ledger, SPEC, log, "c")
    do(ledger, SPEC, begun, lambda p, o: {DEAD_LETTERS: [{"key": None, "value": None, "headers": None, "error": "x"}]})
    return ledger


def test_letters_are_counted_by_reason_and_by_transaction_up_to_the_head(with_letters):
    found = counts(with_letters, "line")
    assert (found.counted, found.is_all) == (40, True)
    assert [asdict(r) for r in found.reasons] == [
        {"reason": reason, "letters": 20, "first_txid": 1, "last_txid": 2} for reason in ("even", "odd")
    ]
    assert [(t.txid, t.letters) for t in found.transactions] == [(2, 20), (1, 20)]
    nothing = counts(with_letters, "unknown")
    assert (nothing.counted, nothing.reasons) == (0, ())


def test_only_the_newest_letters_are_counted_where_there_are_many(with_letters, monkeypatch):
    monkeypatch.setattr(letters, "COUNTED", 20)
    found = counts(with_letters, "line")
    assert (found.counted, found.is_all) == (20, False)


def test_pages_of_letters_have_each_once_the_newest_transaction_first(with_letters):
    whole = [(2, p, o) for p in (0, 1) for o in range(10, 20)] + [(1, p, o) for p in (0, 1) for o in range(10)]
    seen, after = [], None
    while True:
        page = letters.letters(with_letters, "line", after=after, most=7)
        seen += [(letter.txid, letter.partition, letter.offset) for letter in page.letters]
        after = page.next
        if after is None:
            break
    assert seen == whole
    assert [letter.offset for letter in each(with_letters, "line", None, 1, 100)] == [*range(10), *range(10)]
    assert len(list(each(with_letters, "line", None, None, 13))) == 13


def test_letters_of_one_reason_are_found_however_few_are_looked_at_for_a_page(with_letters, monkeypatch):
    monkeypatch.setattr(letters, "SCANNED", 3)
    monkeypatch.setattr(letters, "PAGE", 2)
    found = [(letter.txid, letter.partition, letter.offset) for letter in each(with_letters, "line", "odd", None, 100)]
    odd = [(txid, p, o) for txid, p, o in places_of(with_letters) if o % 2]
    assert found == odd and len(odd) == 20
    page = letters.letters(with_letters, "line", reason="none such")
    assert (page.letters, page.next) == ((), "2.0.12")


def places_of(ledger) -> list[tuple[int, int, int]]:
    return [(letter.txid, letter.partition, letter.offset) for letter in each(ledger, "line", None, None, 1_000)]


def test_a_letter_has_its_bytes_and_their_text_where_they_are_any(ledger, log):
    log.stable = {0: 4, 1: 1}
    values = {0: b'{"a": 1}', 1: b"\xff\x00", 2: None, 3: "Zürich".encode()}
    headers = json.dumps(
        [
            {"key": "h", "value": base64.b64encode(b"\xfe").decode()},
            {"key": "n", "value": None},
            {"key_base64": "eAB5", "value": None},
        ]
    )
    dead(ledger, log, "a", lambda p, o: {"key": b"k", "value": values[o], "error": "no", "headers": headers})
    found = letters.letters(ledger, "line").letters
    assert [(x.value_text, x.value_base64, x.value_size, x.is_json) for x in found[:4]] == [
        ('{"a": 1}', base64.b64encode(values[0]).decode(), 8, True),
        (None, "/wA=", 2, False),
        (None, None, None, False),
        ("Zürich", base64.b64encode(values[3]).decode(), 7, False),
    ]
    assert (found[0].topic, found[0].timestamp, found[0].reason, found[0].key_text) == ("t", WHEN, "no", "k")
    assert [(h.key, h.text, h.base64) for h in found[0].headers] == [
        ("h", None, "/g=="),
        ("n", None, None),
        ("x\0y", None, None),
    ]
    cut = letters.letters(ledger, "line", most_bytes=3).letters[0]
    assert (cut.value_text, cut.value_size, cut.is_json) == ('{"a', 8, False)


def test_a_place_among_letters_that_is_none_is_refused(with_letters):
    with pytest.raises(SettingsError, match="'x' is no place among dead letters"):
        letters.letters(with_letters, "line", after="x")
