"""`ratchet doctor` says of each destination whether it answers, has its mark, and has what is committed."""

from __future__ import annotations

from ratchet import Append, DeltaLake, Table
from ratchet.destinations.port import Undecided
from ratchet.errors import SettingsError
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.doctor import destinations
from ratchet.operate.doctor.finding import Finding, Severity, examine
from ratchet.operate.migrate import migrate
from ratchet.protocol.follow import follow

from ..proxy import Proxy
from ..staging import SPEC
from .elsewhere import SENT, Elsewhere, lasted, sent, without

ADDRESS = "warehouse:copied"


def found(ledger, opens, spec=SENT) -> list[Finding]:
    """What is found of the destinations of a pipeline; nothing is changed by it."""
    return list(examine(destinations.checks(ledger, [spec], lambda _: opens)))


def one(ledger, opens, spec=SENT) -> tuple[Severity, str | None, str]:
    (finding,) = found(ledger, opens, spec)
    assert finding.code == "destination" and finding.pipeline == "line"
    assert (finding.remedy is None) == (finding.severity is Severity.OK)
    return finding.severity, finding.error, finding.what


def test_a_destination_is_well_before_its_first_step_and_behind_it(ledger, log, elsewhere):
    assert one(ledger, elsewhere.opens) == (Severity.OK, None, f"{ADDRESS}, of rows, answers, and has nothing yet")
    assert elsewhere.ask("select to_regnamespace('ratchet_marks')") == [(None,)]
    sent(ledger, elsewhere, log, "a")
    sent(ledger, elsewhere, log, "b")
    assert one(ledger, elsewhere.opens) == (Severity.OK, None, f"{ADDRESS}, of rows, answers, and is at step 2 of 2")


def test_one_that_lacks_a_step_one_that_does_not_answer_and_one_whose_mark_is_moved_are_told_apart(
    ledger, log, elsewhere
):
    sent(ledger, elsewhere, log, "a")
    without(ledger, log, "b")
    assert one(ledger, elsewhere.opens) == (Severity.OK, None, f"{ADDRESS}, of rows, answers, and is at step 1 of 2")
    lasted(ledger, 6)
    severity, _, what = one(ledger, elsewhere.opens)
    assert severity is Severity.FAULT and "BEHIND, at step 1 of 2, since 20" in what
    assert elsewhere.step == 1, "who looks sends nothing"
    with Proxy(elsewhere.url) as proxy:
        proxy.refuse(True)
        severity, error, what = one(ledger, Elsewhere(proxy.url).opens)
    assert (severity, error) == (Severity.FAULT, "RAT-601") and "; what is committed waits for it" in what
    follow(ledger, SENT, elsewhere.opens)
    elsewhere.ask("update ratchet_marks.marks set step = 1")
    severity, error, what = one(ledger, elsewhere.opens)
    assert (severity, error) == (Severity.FAULT, "RAT-603") and "its mark is step 1 (" in what
    elsewhere.ask("delete from ratchet_marks.marks")
    severity, error, what = one(ledger, elsewhere.opens)
    assert (severity, error) == (Severity.FAULT, "RAT-603") and "its mark is gone" in what


def test_one_that_has_a_step_which_nobody_notes_is_a_fault_in_time_as_the_line_waits_for_that(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    sent(ledger, elsewhere, log, "b")
    with ledger.begin() as conn:
        conn.exec_driver_sql(
            "update ratchet.destinations d set step = 1, token = s.token from ratchet.steps s where s.step = 1"
        )
    assert one(ledger, elsewhere.opens) == (Severity.OK, None, f"{ADDRESS}, of rows, answers, and is at step 2 of 2")
    lasted(ledger, 6)
    severity, _, what = one(ledger, elsewhere.opens)
    assert severity is Severity.FAULT and "nothing more is committed" in what


def test_one_that_is_sent_to_while_it_is_looked_at_has_no_other_mark_for_that(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")

    def late(destination, owner):
        # Made anew between what was read in the ledger and the look.
        if not elsewhere.opened:
            elsewhere.opened.append("")
            attach(ledger, SENT, ADDRESS, How.ANEW, "for the test", "me", elsewhere.opens)
            sent(ledger, elsewhere, log, "b")
        return elsewhere.opens(destination, owner)

    elsewhere.opened.clear()
    assert one(ledger, late) == (Severity.OK, None, f"{ADDRESS}, of rows, answers, and is at step 2 of 1")


def test_one_that_is_detached_is_not_asked(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    detach(ledger, "line", ADDRESS, "moved house", "me")
    elsewhere.opened.clear()
    severity, _, what = one(ledger, elsewhere.opens)
    assert severity is Severity.WARNING and "DETACHED since" in what and "moved house" in what
    assert elsewhere.opened == []
    attach(ledger, SENT, ADDRESS, How.ON, "it is back", "me", elsewhere.opens)
    assert one(ledger, elsewhere.opens)[0] is Severity.OK


def test_without_a_connection_it_is_not_checked_and_what_the_ledger_knows_is_said(ledger, log, elsewhere):
    def nothing(*_):
        raise SettingsError("connection 'warehouse' is not named")

    severity, _, what = one(ledger, nothing)
    assert severity is Severity.WARNING and what == f"{ADDRESS}: not checked: connection 'warehouse' is not named"
    without(ledger, log, "a")
    lasted(ledger, 6)
    behind, unchecked = found(ledger, nothing)
    assert behind.severity is Severity.FAULT and "BEHIND, at step 0 of 1" in behind.what
    assert unchecked.severity is Severity.WARNING and "not checked" in unchecked.what


def test_a_login_that_is_refused_is_no_missing_connection_and_a_ledger_that_is_away_no_reason_to_detach(
    ledger, elsewhere
):
    class Refuses:
        def __enter__(self):
            raise SettingsError("the login is refused")

        def __exit__(self, *_):
            pass

    (finding,) = found(ledger, lambda *_: Refuses())
    assert (finding.severity, finding.what) == (Severity.FAULT, "the login is refused")
    assert "detach" not in (finding.remedy or "")


def test_a_lake_whose_disk_is_not_there_is_told_as_that_may_be(lake):
    lake.run("a")
    away = lake.where.beside("away")
    lake.where.move_to(away)
    severity, error, what = one(lake.ledger, lake.opens, lake.spec)
    assert (severity, error) == (Severity.FAULT, "RAT-603") and "a disk that is not mounted" in what
    away.move_to(lake.where)
    assert one(lake.ledger, lake.opens, lake.spec)[0] is Severity.OK


def test_a_catalog_is_looked_at_without_a_change(in_postgresql, elsewhere):
    said = one(in_postgresql.ledger, in_postgresql.opens, in_postgresql.spec)
    assert said == (Severity.OK, None, f"{in_postgresql.address}, of rows, answers, and has nothing yet")
    assert elsewhere.ask("select relname from pg_class where starts_with(relname, 'iceberg')") == []
    in_postgresql.run("a")
    said = one(in_postgresql.ledger, in_postgresql.opens, in_postgresql.spec)
    assert said == (Severity.OK, None, f"{in_postgresql.address}, of rows, answers, and is at step 1 of 1")
    with in_postgresql.catalog() as catalog:
        catalog.drop_table(in_postgresql.name)
    severity, error, what = one(in_postgresql.ledger, in_postgresql.opens, in_postgresql.spec)
    assert (severity, error) == (Severity.FAULT, "RAT-603") and "there is no such table in the catalog" in what


def test_while_somebody_sends_there_it_is_left_alone(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")

    def opens(destination, owner):
        raise Undecided

    assert one(ledger, opens) == (Severity.OK, None, f"{ADDRESS}: somebody sends just now")


def test_one_that_only_the_ledger_knows_is_a_fault_until_it_is_detached(ledger, elsewhere):
    severity, _, what = one(ledger, elsewhere.opens, SPEC)
    assert severity is Severity.FAULT
    assert what == f"the ledger knows {ADDRESS} as a destination of rows, and the spec does not"
    detach(ledger, "line", ADDRESS, "not wanted any more", "me")
    assert found(ledger, elsewhere.opens, SPEC) == []


def test_each_destination_of_a_sink_has_a_finding_of_its_own(bare, elsewhere, tmp_path):
    to = [DeltaLake(str(tmp_path / "lake")), Table("copied", database="warehouse")]
    spec = SPEC.model_copy(update={"sinks": [Append("rows", columns="a bigint", to=to), *SPEC.sinks[1:]]})
    migrate(bare.url, [SPEC])
    assert found(bare, elsewhere.opens, spec) == [], "what the ledger does not know is told with the tables"
    migrate(bare.url, [spec])

    def opens(destination, owner):
        return destination.open(owner, "" if destination.reached_by == "path" else "postgresql://nobody@127.0.0.1:1/x")

    lake, table = found(bare, opens, spec)
    assert (lake.severity, table.severity) == (Severity.OK, Severity.FAULT)
    assert not (tmp_path / "lake").exists()
