"""Who is told of a halt, how often, and what is known of it in the ledger; against a real PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from ratchet import Halt
from ratchet.airflow import connections
from ratchet.airflow import halted as calling
from ratchet.airflow.begin import BeginOperator
from ratchet.airflow.maintenance import Pass
from ratchet.airflow.settle import SettleOperator
from ratchet.errors import LedgerUnreachable, NotRevisable, TransformError
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort, retry, void
from ratchet.protocol import claims
from ratchet.protocol.commit import commit, give_up_half
from ratchet.protocol.failures import errors_recorded
from ratchet.protocol.notices import MOST_TRIES, tell
from ratchet.protocol.votes import take_try, vote_no

from .staging import SPEC, Log, committed, do_slice, fail, prepare, start

HERE = __name__
CALLED: list[tuple[str, Halt]] = []


def paged(halt: Halt) -> None:
    CALLED.append(("paged", halt))


def mailed(halt: Halt) -> None:
    CALLED.append(("mailed", halt))


def raises(halt: Halt) -> None:
    CALLED.append(("raises", halt))
    raise ConnectionError("no mail today\nnor tomorrow")


GO_ON = threading.Event()


def hangs(halt: Halt) -> None:
    GO_ON.wait(60)


class Notifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text: str):
        super().__init__()
        self.text = text

    def notify(self, context) -> None:
        CALLED.append((self.text, context["halt"]))


notifier = Notifier("{{ halt.pipeline }} at {{ halt.txid }} ({{ halt.code }})")


def spec_of(*names: str, **changed):
    return SPEC.model_copy(update={"on_halt": tuple(f"{HERE}:{name}" for name in names), **changed})


@pytest.fixture(autouse=True)
def nobody_was_called():
    CALLED.clear()


CODED = "(RAT-501; ratchet explain RAT-501)"


def halt(ledger: Ledger, log: Log, runs: str = "abc") -> None:
    for run in runs:
        fail(ledger, log, run)


def told(ledger: Ledger) -> list[tuple]:
    """What the history says of notices: who told whom, and what went wrong."""
    with ledger.begin() as conn:
        assert history.verify(conn, SPEC.name) == []
        events = [e for e in history.read(conn, SPEC.name) if e.move == "told"]
    return [(e.who, e.detail["to"].rpartition(":")[2], e.detail["error"]) for e in events]


def names() -> list[str]:
    return [name for name, _ in CALLED]


def test_everybody_is_told_once_what_has_happened_and_what_to_do(ledger, log):
    spec = spec_of("paged", "mailed")
    calling.tell(ledger, spec, "nobody")
    assert CALLED == []
    begun = start(ledger, SPEC, log, "a")
    work = take_try(ledger, SPEC, begun.claim, 0)
    with pytest.raises(TransformError), errors_recorded(ledger, work.token):
        raise TransformError("column b is gone")
    claims.settle(ledger, spec.model_copy(update={"max_failures": 1}), Run("dag", "a"), succeeded=False, reason="why")
    for who in ("a", "b", "maintenance"):
        calling.tell(ledger, spec, who)
    assert names() == ["paged", "mailed"]
    (_, seen), _ = CALLED
    assert (seen.pipeline, seen.txid, seen.failures, seen.reason) == ("line", 1, 1, f"why {CODED}")
    assert (seen.code, seen.dag_id, seen.run_id) == (TransformError.code, "dag", "a")
    commands = [way.command for way in seen.ways_out]
    assert commands == [None, "ratchet retry line 1", "ratchet void line 1 --reason …"]
    assert str(seen).startswith("line is halted at transaction 1 since 20") and commands[1] in str(seen)
    assert str(seen).count("RAT-501") == 2 and f"after 1 failure: why {CODED}; correct the cause" in str(seen)
    with ledger.begin() as conn:
        ((halted, event),) = [(e.move, e.detail["why"]) for e in history.read(conn, SPEC.name) if e.move == "halt"]
    assert (halted, event) == ("halt", f"why {CODED}")
    assert told(ledger) == [("a", "paged", None), ("a", "mailed", None)]


def test_a_refusal_and_a_silent_end_have_codes_too(ledger, log):
    spec = spec_of("paged", max_failures=1)
    begun = start(ledger, SPEC, log, "a")
    vote_no(ledger, take_try(ledger, SPEC, begun.claim, 0).token, "not these")
    claims.settle(ledger, spec, Run("dag", "a"), succeeded=False, reason="failed")
    calling.tell(ledger, spec, "a")
    retry(ledger, spec, 1, who="me")
    start(ledger, SPEC, log, "b")
    claims.settle(ledger, spec, Run("dag", "b"), succeeded=False, reason="killed")
    calling.tell(ledger, spec, "b")
    assert [seen.code for _, seen in CALLED] == ["RAT-404", "RAT-405"]
    assert [seen.reason for _, seen in CALLED] == ["not these (RAT-404; ratchet explain RAT-404)", "killed"]


def test_what_a_person_has_aborted_is_no_error_of_the_transform(ledger, log):
    spec = spec_of("paged", max_failures=1)
    start(ledger, SPEC, log, "a")
    abort(ledger, spec, 1, "the code is wrong", who="me")
    claims.settle(ledger, spec, Run("dag", "a"), succeeded=False, reason="failed")
    calling.tell(ledger, spec, "a")
    assert [(seen.code, seen.reason) for _, seen in CALLED] == [("RAT-405", "the code is wrong")]


def test_a_halt_that_comes_again_after_a_retry_is_told_again_and_one_that_is_lifted_is_not(ledger, log):
    spec = spec_of("paged")
    halt(ledger, log)
    retry(ledger, SPEC, 1, who="me")
    calling.tell(ledger, spec, "too late")
    assert CALLED == []
    halt(ledger, log, "def")
    calling.tell(ledger, spec, "f")
    retry(ledger, SPEC, 1, who="me")
    halt(ledger, log, "ghi")
    calling.tell(ledger, spec, "i")
    calling.tell(ledger, spec, "maintenance")
    void(ledger, SPEC, 1, who="me", reason="enough")
    calling.tell(ledger, spec, "maintenance")
    assert [who for who, _, _ in told(ledger)] == ["f", "i"] and names() == ["paged", "paged"]


def test_of_many_that_see_a_halt_at_once_one_tells(ledger, log):
    spec, entered, go_on = spec_of("paged"), threading.Event(), threading.Event()
    halt(ledger, log)

    def call(name: str, halt: Halt) -> None:
        CALLED.append((name, halt))
        entered.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(tell, ledger, spec, "first", call)
        assert entered.wait(30)
        try:
            with Ledger(ledger.url) as other:
                assert [tell(other, spec, who, call) for who in "bc"] == [[], []]
                # Nothing of the line is locked while somebody is called.
                retry(other, SPEC, 1, who="me")
        finally:
            go_on.set()
        assert len(first.result(30)) == 1
    assert len(CALLED) == 1


def test_whoever_is_killed_between_the_call_and_the_note_leaves_it_to_the_next(ledger, log):
    spec = spec_of("paged", "mailed")
    halt(ledger, log)

    def killed(name: str, halt: Halt) -> None:
        CALLED.append((name, halt))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tell(ledger, spec, "a", killed)
    assert told(ledger) == []
    calling.tell(ledger, spec, "maintenance")
    assert names() == [f"{HERE}:paged", "paged", "mailed"]


def test_who_raises_holds_up_nobody_and_is_tried_some_times_more(ledger, log):
    spec = spec_of("raises", "paged")
    halt(ledger, log)
    for _ in range(MOST_TRIES + 2):
        calling.tell(ledger, spec, "maintenance")
    assert names() == ["raises", "paged", *["raises"] * (MOST_TRIES - 1)]
    errors = [error for _, to, error in told(ledger) if to == "raises"]
    assert errors == ["ConnectionError: no mail today nor tomorrow"] * MOST_TRIES


def test_what_is_not_there_or_does_not_return_is_noted_and_holds_up_nobody(ledger, log, monkeypatch):
    monkeypatch.setattr(calling, "LONGEST_SECONDS", 0.2)
    halt(ledger, log)
    calling.tell(ledger, spec_of("hangs", "nowhere", "paged"), "a")
    GO_ON.set()
    assert names() == ["paged"]
    hanging, missing, fine = [error for _, _, error in told(ledger)]
    assert hanging == "it has not returned within 0.2 s" and fine is None
    assert missing.startswith(f"SpecError: Pipeline.on_halt: '{HERE}:nowhere' cannot be imported")


def test_a_private_pipelines_errors_are_noted_without_their_words(ledger, log):
    halt(ledger, log)
    calling.tell(ledger, spec_of("raises", private=True), "a")
    (_, _, error), *_ = told(ledger)
    assert error.startswith("ConnectionError at ledger/test_notices.py:") and "mail" not in error


def test_a_notifier_of_airflows_own_kind_has_the_halt_in_its_templates(ledger, log):
    spec = spec_of("notifier")
    halt(ledger, log)
    calling.tell(ledger, spec, "c")
    retry(ledger, SPEC, 1, who="me")
    committed(ledger, log, "d")
    halt(ledger, log, "efg")
    calling.tell(ledger, spec, "g")
    assert names() == ["line at 1 (RAT-405)", "line at 2 (RAT-405)"]


def test_a_ledger_that_is_away_is_said_and_ends_no_task(ledger, monkeypatch):
    def away(*_):
        raise LedgerUnreachable("away")

    monkeypatch.setattr("ratchet.protocol.notices.tell", away)
    calling.tell(ledger, spec_of("paged"), "a")
    assert CALLED == []


@dataclass
class Airflow:
    """What Airflow's supervisor says to a task."""

    states: dict[str, str] = field(default_factory=dict)

    def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict:
        return {run_ids[0]: self.states}

    def get_dagrun_state(self, dag_id: str, run_id: str) -> str:
        return "failed"

    def get_dr_count(self, dag_id: str, states: list[str]) -> int:
        return 0


def context_of(run: str, **states: str) -> dict:
    dag_run = SimpleNamespace(dag_id="dag", run_id=run, clear_number=0, data_interval_end=None, run_type="manual")
    return {"dag_run": dag_run, "ti": Airflow(states), "params": {}}


@pytest.mark.parametrize("teller", ["settle", "begin", "maintenance"])
def test_whichever_task_meets_a_halt_tells_of_it(ledger, log, monkeypatch, teller):
    spec = spec_of("paged")
    monkeypatch.setattr("ratchet.airflow.run.load_pipeline", lambda name: spec)
    monkeypatch.setattr(connections, "ledger_url", lambda connection: ledger.url)
    monkeypatch.setattr(connections, "spark_target", lambda connection: SimpleNamespace(in_clear=None))
    monkeypatch.setattr(connections, "kafka_properties", lambda *_: {})
    topic = SimpleNamespace(offsets=lambda _, *how, **more: log.offsets(*how, **more))
    monkeypatch.setattr("ratchet.source.kafka.Kafka", lambda _: nullcontext(topic))
    monkeypatch.setattr(Pass, "_kafka", lambda *_: None)
    fail(ledger, log, "a")
    fail(ledger, log, "b")
    start(ledger, SPEC, log, "c")
    with pytest.raises(AirflowFailException, match="halted at transaction 1"):
        SettleOperator(task_id="settle", pipeline="line").execute(context_of("c", process="failed"))
    if teller != "settle":
        # It was killed before it had told anybody of another halt.
        retry(ledger, SPEC, 1, who="me")
        CALLED.clear()
        halt(ledger, log, "def")
    if teller == "begin":
        with pytest.raises(AirflowFailException, match="halted at transaction 1"):
            BeginOperator(task_id="begin", pipeline="line").execute(context_of("g"))
    if teller == "maintenance":
        upkeep = Pass(context_of("m"))
        upkeep.run("ratchet_ledger", [spec])
    assert names() == ["paged"]
    assert told(ledger)[-1][0] == {"settle": "c", "begin": "g", "maintenance": "maintenance"}[teller]


def test_a_reason_has_no_code_of_an_error_that_is_mended_or_of_what_a_revision_is_made_with(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    lost = take_try(ledger, SPEC, begun.claim, 0)
    with pytest.raises(TransformError), errors_recorded(ledger, lost.token):
        raise TransformError("its worker went away")
    do_slice(ledger, SPEC, begun, 0)
    claims.settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    again = start(ledger, SPEC, log, "b")
    do_slice(ledger, SPEC, again, 1)
    commit(ledger, SPEC, again.claim)
    start(ledger, SPEC, log, "b", 1)
    claims.settle(ledger, SPEC, Run("dag", "b", 1), succeeded=False, reason="killed too")
    with ledger.begin() as conn:
        ends = [e.detail["why"] for e in history.read(conn, SPEC.name) if e.move == "end"]
    assert [why for why in ends if why.startswith("killed")] == ["killed", "killed too"]


def test_a_revision_of_which_some_tasks_alone_were_cleared_is_no_refusal(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    half = start(ledger, SPEC, log, "a", 1)
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, 1, 1, lock=True)
        wrong = give_up_half(conn, row, half.claim)
    assert isinstance(wrong, NotRevisable)
    claims.settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False, reason="it is given up")
    with ledger.begin() as conn:
        (why,) = [e.detail["why"] for e in history.read(conn, SPEC.name) if e.move == "end" and e.revision == 1]
    assert why == f"it is given up ({NotRevisable.code}; ratchet explain {NotRevisable.code})"
