"""What monitoring is given beside the numbers: names, rules and dashboard belong together."""

from __future__ import annotations

import json
import re

import pytest

from ratchet.errors import SettingsError
from ratchet.exporting import _address
from ratchet.telemetry.measures import MEASURES
from tests.unit.test_docs import ROOT, rows

NAMES = {measure.prometheus for measure in MEASURES.values()}
MONITORING = ROOT / "docs" / "monitoring"


def test_the_dashboard_and_the_rules_use_metrics_that_there_are():
    board = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = re.findall(r"expr: (.*)", (MONITORING / "alerts.yml").read_text())
    for query in [*queries, *rules]:
        used = set(re.findall(r"ratchet_\w+", query))
        assert used and used <= NAMES, query
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_every_rule_is_in_the_docs():
    alerts = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())
    listed = [name for cells in rows((ROOT / "docs" / "monitoring.md").read_text()) for name in cells[0].split(", ")]
    assert alerts == listed


@pytest.mark.parametrize("said", ["9469", "host:", "host:99999", ":1", "host:one"])
def test_an_address_that_is_none_is_refused(said):
    with pytest.raises(SettingsError, match="no address"):
        _address(said)


def test_an_address_of_either_kind_is_taken():
    assert _address("127.0.0.1:0") == ("127.0.0.1", 0) and _address("[::1]:9469") == ("::1", 9469)
