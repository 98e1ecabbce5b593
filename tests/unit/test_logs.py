"""The lines of our own processes: for people, or one JSON object each."""

import json

import pytest
import structlog

from ratchet.errors import SettingsError
from ratchet.ledger.work import SliceToken
from ratchet.logs import about, choose_form, get_logger


@pytest.fixture(autouse=True)
def as_before():
    yield
    structlog.reset_defaults()


def test_a_line_as_json_has_what_it_is_about_and_an_error_without_local_values(capsys):
    choose_form({"RATCHET_LOGS": "json"})
    with about(SliceToken("orders", 7, 2, 1, 3)):
        get_logger().info("read")
        try:
            password = "canary"
            raise ValueError(f"{len(password)} letters\nand a line")
        except ValueError:
            get_logger().exception("fell")
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = map(json.loads, printed.err.splitlines())
    assert first.pop("timestamp").endswith("Z")
    told = {"pipeline": "orders", "txid": 7, "epoch": 2, "slice": 1, "try": 3}
    assert first == {"event": "read", "level": "info", **told}
    assert second["level"] == "error" and "6 letters\nand a line" in second["exception"]
    assert "canary" not in printed.err


def test_without_a_choice_a_line_is_for_people(capsys):
    choose_form({})
    with about("orders"):
        get_logger().warning("slow", seconds=3)
    said = capsys.readouterr().err
    assert "warning" in said and "slow" in said and "pipeline=orders seconds=3" in said


def test_another_choice_is_refused():
    with pytest.raises(SettingsError, match="RATCHET_LOGS=xml is unknown; set it to text or json"):
        choose_form({"RATCHET_LOGS": "xml"})
