"""What is said in place of values: positions, names and places, whatever a format, PostgreSQL or a person has said."""

import traceback
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError

from ratchet import Append, Json, Pipeline, Topic, cli
from ratchet.errors import Refused
from ratchet.formats.envelope import NO_KEY, TOMBSTONE
from ratchet.sinks.comparison import Example
from ratchet.values import unfit
from ratchet.values.unfit import Unfit
from ratchet.values.withheld import kept_out, named, place_of, postgres_said, record_error

SECRET = "DE89370400440532013000"
COLUMNS = {"a": "int", "iban": "string"}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (f"column a: found {SECRET}, wanted int", "column a: found [private], wanted int"),
        (f"column a: found x, wanted {SECRET}, wanted int", "column a: found [private], wanted int"),
        (f'column a["{SECRET}"]: found x, wanted int', "column a: found [private], wanted int"),
        (f"key column iban: found {SECRET}", "key column iban: found [private], wanted string"),
        (f"row 3, column a: found {SECRET}, wanted int", "row 3, column a: found [private], wanted int"),
        ("column a: found null, wanted int not null", "column a: found null, wanted int not null"),
        ("column a: found nothing, wanted int not null", "column a: found nothing, wanted int not null"),
        (f"column {SECRET}: found x, wanted int", "the value: found [private]"),
        (f"the value: found {SECRET}, wanted one JSON object", "the value: found [private]"),
        (f"the key: found {SECRET}, wanted one JSON object", "the key: found [private]"),
        (f"a format of somebody's own says {SECRET}", "the value: found [private]"),
        (TOMBSTONE, TOMBSTONE),
        (NO_KEY, NO_KEY),
    ],
)
def test_of_a_records_error_only_what_it_is_about_is_kept(error, said):
    assert record_error(error, COLUMNS, (TOMBSTONE, NO_KEY)) == said


def test_what_was_found_and_what_leads_to_it_is_left_out():
    found = Unfit(SECRET, "int", f'["{SECRET}"]')
    assert found.said("column a", private=True) == "column a: found [private], wanted int"
    assert SECRET in found.said("column a")


def refusal() -> psycopg.Error:
    return psycopg.errors.UniqueViolation(f"duplicate key\nDETAIL:  Key (iban)=({SECRET}) already exists.")


def test_of_postgresqls_words_its_names_are_kept():
    assert postgres_said(refusal(), private=True) == "UniqueViolation (23505)"
    assert SECRET in postgres_said(refusal(), private=False)
    assert postgres_said(OverflowError(SECRET), private=True) == "OverflowError"


def test_a_row_that_a_replay_would_change_is_shown_by_its_position_and_columns():
    kept = Example("changed", {"_partition": 0, "_offset": 7}, {"iban": (SECRET, None)})
    assert SECRET in str(kept)
    assert str(kept.withheld) == "changed: partition 0, offset 7: iban [private] → [private]"
    keyed = Example("removed", {"iban": SECRET}, {})
    assert str(keyed.withheld) == "removed: iban [private]"


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_error_is_named_by_its_class_and_the_persons_own_line():
    assert named(raised(KeyError(SECRET))).startswith("KeyError at unit/test_withheld.py:")
    behind = IntegrityError(f"insert … {SECRET}", {"iban": SECRET}, refusal())
    assert named(raised(behind)).startswith("UniqueViolation (23505) at unit/test_withheld.py:")
    theirs, library = "/home/me/ratchet/jobs/orders.py", str(Path(unfit.__file__))
    installed = "/srv/.venv/lib/python3.11/site-packages/pandas/core/frame.py"
    inner = [(library, 1, "f"), (installed, 2, "f")]
    assert place_of([(theirs, 7, "f"), *inner, ("pyarrow/error.pxi", 92, "f")]) == " at jobs/orders.py:7"
    assert place_of(inner) == " at values/unfit.py:1"
    assert place_of([]) == ""


@pytest.mark.parametrize("error", [Refused("position 7"), ValueError(SECRET), refusal()])
def test_no_error_leaves_with_those_that_led_to_it(error):
    with pytest.raises(Exception) as left, kept_out(True):
        try:
            raise LookupError(SECRET)
        except LookupError as before:
            raise error from before
    text = "".join(traceback.format_exception(left.value))
    assert SECRET not in text and ("position 7" in text or "at unit/test_withheld.py" in text)


def test_what_may_pass_is_left_as_it_is():
    for private, passing in ((False, ()), (True, (ValueError,))):
        error = ValueError(SECRET)
        with pytest.raises(ValueError) as left, kept_out(private, *passing):
            raise error from KeyError()
        assert left.value is error and error.__cause__ is not None


@pytest.mark.parametrize("is_private", [True, False])
def test_an_error_that_no_command_expects_quotes_no_value_where_a_pipeline_is_private(monkeypatch, capsys, is_private):
    spec = Pipeline(
        name="p", source=Topic("t", value=Json("a int")), sinks=[Append("r", columns="a int")], private=is_private
    )
    monkeypatch.setattr("ratchet.spec.loading.read_specs", lambda: ({"p": spec}, []))

    def fail() -> None:
        try:
            raise refusal()
        except psycopg.Error as error:
            raise ValueError(SECRET) from error

    with pytest.raises(SystemExit if is_private else ValueError) as raised:
        cli.main(fail)
    said = capsys.readouterr().err + "".join(traceback.format_exception(raised.value))
    assert (SECRET in said) == (not is_private)
    if is_private:
        assert "in fail" in said and "error: ValueError at unit/test_withheld.py:" in said and "RATCHET_DEBUG=1" in said
    monkeypatch.setenv("RATCHET_DEBUG", "1")
    with pytest.raises(ValueError, match=SECRET):
        cli.main(fail)
