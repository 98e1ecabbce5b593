"""The operator's moves on the page: tried first, then made as it was confirmed, by the user whom Airflow knows."""

from __future__ import annotations

import pytest

from ratchet.ledger import history
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.operate.pauses import pause_at
from ratchet.operate.replay import ask
from ratchet.operate.snapshot.status import status
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.ledger.destinations.elsewhere import SENT, without
from tests.ledger.staging import SPEC, committed, do, fail, prepare, start, state

from .conftest import As

pytestmark = pytest.mark.all

Answer = dict
LETTER = {"key": None, "value": b"?", "headers": None, "error": "no number"}


def post(client, move: str, **body) -> tuple[int, Answer]:
    said = client.post(f"/pipelines/line/moves/{move}", json=body)
    return said.status_code, said.json()


def last(ledger) -> tuple[str, str, str]:
    with ledger.snapshot() as conn:
        event = history.read(conn, "line")[-1]
    return event.move, event.who, event.detail["why"]


def halt(ledger, log) -> None:
    for run in "abc":
        fail(ledger, log, run)


def test_a_void_is_tried_confirmed_and_made_by_the_user_and_the_line_goes_on(as_: As, ledger, log):
    client = as_("ulf")
    lost = start(ledger, SPEC, log, "a")
    behind = start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, behind)
    status_, tried = post(client, "void", txid=1)
    assert status_ == 200 and tried["dry_run"] and tried["committed"] == [2] and tried["head"] == 2
    assert tried["said"][0].startswith("transaction 1 is VOIDED, gives up 20 records at most, and commits")
    assert tried["said"][-1] == "this was a dry run: nothing was changed"
    assert state(ledger, 1) == "OPEN" and status(ledger, "line").head == 0 and lost
    status_, done = post(client, "void", txid=1, dry_run=False, reason=" bad file ", confirm=tried["confirm"])
    assert status_ == 200 and not done["dry_run"] and done["confirm"] is None
    assert (done["head"], done["committed"]) == (2, [2])
    assert done["changes"][0]["ranges"][0] == {"topic": "t", "partition": 0, "from_offset": 0, "until_offset": 10}
    assert state(ledger, 1) == "VOIDED" and status(ledger, "line").head == 2
    with ledger.snapshot() as conn:
        (voided,) = (event for event in history.read(conn, "line", 1) if event.move == "VOIDED")
    assert (voided.who, voided.detail["why"]) == ("ulf", "bad file")


def test_nothing_is_made_without_a_reason_or_what_was_confirmed(as_: As, ledger, log):
    client = as_("ulf")
    halt(ledger, log)
    _, tried = post(client, "void", txid=1)
    for reason in (None, "  ", "\u0000"):
        status_, said = post(client, "void", txid=1, dry_run=False, reason=reason, confirm=tried["confirm"])
        assert (status_, said["code"], said["error"]) == (400, "RAT-102", "SettingsError")
    for confirm in (None, "", "0" * 16):
        status_, said = post(client, "void", txid=1, dry_run=False, reason="x", confirm=confirm)
        assert (status_, said["code"]) == (409, "RAT-403") and "not what was confirmed" in said["message"]
    assert state(ledger, 1) == "OPEN"


def test_what_has_changed_since_it_was_confirmed_is_not_done(as_: As, ledger, log):
    client = as_("ulf")
    begun = start(ledger, SPEC, log, "a")
    _, tried = post(client, "abort", txid=1)
    prepare(ledger, SPEC, begun)
    status_, said = post(client, "abort", txid=1, dry_run=False, reason="x", confirm=tried["confirm"])
    assert status_ == 409 and "not what was confirmed" in said["message"] and state(ledger, 1) == "PREPARED"
    # That of one move confirms no other, and that of one transaction none of another.
    start(ledger, SPEC, log, "b")
    _, tried = post(client, "abort", txid=1)
    for move, txid in (("void", 1), ("abort", 2)):
        status_, said = post(client, move, txid=txid, dry_run=False, reason="x", confirm=tried["confirm"])
        assert status_ == 409, said
    # A head that moves meanwhile is no other answer.
    status_, done = post(client, "abort", txid=1, dry_run=False, reason="x", confirm=tried["confirm"])
    assert status_ == 200 and state(ledger, 1) == "ABORTED" and last(ledger) == ("ABORTED", "ulf", "x")


def test_a_halt_is_lifted_and_the_history_has_the_reason(as_: As, ledger, log):
    client = as_("olga")
    halt(ledger, log)
    status_, tried = post(client, "retry")
    assert status_ == 200 and tried["changes"][0]["txid"] == 1 and status(ledger, "line").halt == 1
    status_, _ = post(client, "retry", dry_run=False, reason="the disk has room again", confirm=tried["confirm"])
    assert status_ == 200 and status(ledger, "line").halt is None
    assert last(ledger) == ("retry", "olga", "the disk has room again")
    status_, said = post(client, "retry")
    assert (status_, said["code"]) == (409, "RAT-403") and "line is not halted" in said["message"]


def test_an_abort_discards_nothing_while_it_is_tried(as_: As, ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    status_, tried = post(as_("ada"), "abort", txid=1)
    assert status_ == 200 and tried["changes"][0]["to_state"] == "ABORTED" and state(ledger, 1) == "PREPARED"
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False)


def test_revisions_are_asked_for_and_taken_back(as_: As, ledger, log):
    client = as_("ulf")
    for run in "abc":
        committed(ledger, log, run)
    ask(ledger, SPEC, 2, 2, "before", "me")
    status_, tried = post(client, "replay", first=1, last=3)
    assert status_ == 200 and tried["txids"] == [1, 3] and tried["before"] == [2]
    assert status(ledger, "line").replays == 1
    status_, _ = post(client, "replay", first=1, last=3, dry_run=False, reason="again", confirm=tried["confirm"])
    assert status_ == 200 and status(ledger, "line").replays == 3 and last(ledger)[:2] == ("replay", "ulf")
    status_, tried = post(client, "cancel-replay", first=1, last=2)
    assert status_ == 200 and tried["txids"] == [1, 2] and status(ledger, "line").replays == 3
    status_, _ = post(client, "cancel-replay", first=1, last=2, dry_run=False, reason="no", confirm=tried["confirm"])
    assert status_ == 200 and status(ledger, "line").replays == 1
    status_, said = post(client, "replay", first=3, last=1)
    assert (status_, said["code"]) == (400, "RAT-102")
    status_, said = post(client, "replay", first=1, last=9)
    assert (status_, said["code"]) == (409, "RAT-406")


def test_before_a_replay_what_it_replaces_is_said_and_the_command_that_shows_the_difference(as_: As, ledger, log):
    for run in "ab":
        committed(ledger, log, run)
    _, tried = post(as_("ulf"), "replay", first=1, last=2, voided=True)
    assert tried["said"][0].startswith("line: what stands was made of 40 records, and is rows: ")
    assert "`ratchet replay line --from 1 --to 2 --voided --dry-run`" in tried["said"][2]
    confirmed = {"dry_run": False, "reason": "x", "confirm": tried["confirm"]}
    _, done = post(as_("ulf"), "replay", first=1, last=2, voided=True, **confirmed)
    assert done["said"] == tried["said"][3:-1]


def test_a_line_is_paused_and_goes_on_by_the_user_and_both_views_say_so(as_: As, ledger, log):
    client = as_("ulf")
    start(ledger, SPEC, log, "a")
    _, tried = post(client, "pause-at")
    assert tried["pause"]["txid"] == 1 and status(ledger, "line").pause is None
    # Another run has begun: the line stops behind that one, which is no other move.
    start(ledger, SPEC, log, "b")
    status_, done = post(client, "pause-at", dry_run=False, reason="audit", confirm=tried["confirm"])
    assert status_ == 200 and (done["pause"]["txid"], done["pause"]["who"]) == (2, "ulf")
    assert last(ledger) == ("pause-at", "ulf", "audit")
    (line,) = [of for of in client.get("/pipelines").json()["pipelines"] if of["pipeline"] == "line"]
    one = client.get("/pipelines/line").json()["status"]
    assert line["paused_why"] == one["paused_why"] and "paused behind transaction 2 by ulf" in line["paused_why"]
    assert client.get("/pipelines/line/transactions/2").json()["pause"] == done["pause"] and not line["halted_why"]
    # Of one transaction it confirms no other, and a pause that another person has moved meanwhile is not lifted.
    _, tried = post(client, "pause-at", txid=1)
    assert post(client, "pause-at", txid=2, dry_run=False, reason="x", confirm=tried["confirm"])[0] == 409
    _, tried = post(client, "resume")
    pause_at(ledger, SPEC, 1, "not yet", "another")
    assert post(client, "resume", dry_run=False, reason="x", confirm=tried["confirm"])[0] == 409
    _, tried = post(client, "resume")
    status_, done = post(client, "resume", dry_run=False, reason="done", confirm=tried["confirm"])
    assert status_ == 200 and status(ledger, "line").pause is None and done["lifted"]["who"] == "another"
    status_, said = post(client, "resume")
    assert (status_, said["code"]) == (409, "RAT-403") and "line is not paused" in said["message"]


def test_a_loss_is_looked_for_in_kafka_which_may_be_away(as_: As, ledger, log):
    committed(ledger, log, "a")
    status_, said = post(as_("ulf"), "accept-loss")
    assert (status_, said["code"], said["error"]) == (503, "RAT-301", "BrokerUnreachable")


@pytest.mark.parametrize(
    ("body", "said"),
    [({}, "body.txid: Field required"), ({"txid": 0}, "body.txid"), ({"txid": 1, "txids": [2]}, "body.txids: Extra")],
)
def test_a_request_that_is_not_as_the_description_has_it_says_where(as_: As, ledger, body, said):
    status_, answer = post(as_("ulf"), "void", **body)
    assert status_ == 422 and answer["code"] is None and said in answer["message"]


def test_a_pipeline_or_a_transaction_that_is_not_there_has_a_code(as_: As, ledger, log):
    client = as_("ulf")
    said = client.post("/pipelines/none/moves/void", json={"txid": 1})
    assert (said.status_code, said.json()["code"]) == (404, "RAT-101")
    start(ledger, SPEC, log, "a")
    assert post(client, "void", txid=7)[1]["code"] == "RAT-401"


def test_dead_letters_are_released_as_they_were_confirmed(as_: As, ledger, log):
    client = as_("ulf")
    for run in "ab":
        begun = start(ledger, SPEC, log, run)
        do(ledger, SPEC, begun, lambda partition, offset: {DEAD_LETTERS: [LETTER]} if offset % 5 == 0 else {})
        commit(ledger, SPEC, begun.claim)
    counts = client.get("/pipelines/line/letters/counts").json()
    assert counts["may_move"] and counts["counted"] == 8
    assert not as_("vera").get("/pipelines/line/letters/counts").json()["may_move"]
    status_, tried = post(client, "release", error="no", first=2)
    assert status_ == 200 and tried["letters"] == {"2": 4} and status(ledger, "line").replays == 0
    status_, said = post(client, "release", error="no", dry_run=False, reason="x", confirm=tried["confirm"])
    assert status_ == 409 and "not what was confirmed" in said["message"]
    of = {"error": "no", "first": 2, "reason": "corrected", "confirm": tried["confirm"]}
    status_, done = post(client, "release", dry_run=False, **of)
    assert status_ == 200 and done["letters"] == {"2": 4} and status(ledger, "line").replays == 1
    assert last(ledger) == ("release", "ulf", "corrected")
    status_, said = post(client, "release", first=2, last=1)
    assert (status_, said["code"]) == (400, "RAT-102")
    status_, said = post(client, "release", error="maybe")
    assert (status_, said["code"]) == (409, "RAT-406")


def test_a_destination_is_detached_and_the_line_goes_on_without_it(as_: As, ledger, log):
    client = as_("ulf")
    migrate(ledger.url, [SENT])
    without(ledger, log, "a")
    status_, tried = post(client, "detach", destination="warehouse:copied")
    assert status_ == 200 and (tried["step"], tried["last"], tried["attached"]) == (0, 1, False)
    assert tried["said"][0].startswith("line: warehouse:copied: is detached at step 0; it lacks 1 step")
    said = {"destination": "warehouse:copied", "dry_run": False, "reason": "it is gone"}
    status_, refused = post(client, "detach", **said, confirm="0" * 16)
    assert status_ == 409 and "not what was confirmed" in refused["message"]
    (of,) = status(ledger, "line").destinations
    assert of.detached_at is None and of.waits_since
    status_, done = post(client, "detach", **said, confirm=tried["confirm"])
    assert status_ == 200 and not done["dry_run"] and last(ledger) == ("detach", "ulf", "it is gone")
    (of,) = client.get("/pipelines/line").json()["status"]["destinations"]
    assert (of["detached_by"], of["step"], of["last"]) == ("ulf", 0, 1) and "DETACHED since" in of["said"]
    for other in ("warehouse:copied", "warehouse:other"):
        status_, refused = post(client, "detach", destination=other)
        assert status_ == 409 and refused["code"] == "RAT-403"
