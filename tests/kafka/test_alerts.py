"""The alert rules: good by `promtool`, and seen to fire in a real Prometheus that scrapes a real exporter."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.protocol.claims import settle
from ratchet.telemetry.exporter import Exporter, Eye
from ratchet.telemetry.measures import MEASURES
from tests.kafka.exported import Line
from tests.until import until

RULES = Path(__file__).resolve().parents[2] / "docs" / "monitoring" / "alerts.yml"

pytestmark = pytest.mark.all


def firing(url: str) -> set[str]:
    found = httpx.get(f"{url}/api/v1/alerts").json()["data"]["alerts"]
    return {a["labels"]["alertname"] for a in found if a["state"] == "firing"}


@pytest.fixture
def prometheus(tmp_path: Path, line: Line, ledger_url, kafka_properties) -> Iterator[str]:
    """Prometheus' URL: each rule is looked at every half second, and without the time that it waits for."""
    rules = re.sub(r"for: \w+", "for: 0s", RULES.read_text())
    (tmp_path / "alerts.yml").write_text(rules)
    with Eye(ledger_url, kafka_properties) as eye, Exporter(eye, 1, "127.0.0.1", 0) as exporter:
        thread = threading.Thread(target=exporter.run, daemon=True)
        thread.start()
        target = {"targets": [f"127.0.0.1:{exporter.port}"]}
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [{"job_name": "ratchet", "static_configs": [target]}],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=error",
             f"--web.listen-address=127.0.0.1:{port}"],
            cwd=tmp_path,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            until("Prometheus is ready", lambda: _is_ready(url), 60)
            yield url
        finally:
            server.terminate()
            server.wait(30)
            exporter.stop()
            thread.join(60)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").is_success
    except httpx.HTTPError:
        return False


def test_promtool_finds_nothing_wrong_and_each_rule_fires_by_its_own_measure(tmp_path: Path):
    tool = shutil.which("promtool")
    assert tool, "test-all needs promtool; Debian: apt-get install prometheus"
    subprocess.run([tool, "check", "rules", "--lint=all", "--lint-fatal", RULES], check=True, capture_output=True)
    cases = {
        "RatchetHalted": {"ratchet_halted": 1},
        "RatchetRecordsLost": {"ratchet_lost": 3},
        "RatchetRetentionNear": {"ratchet_retention_left_seconds": 3600},
        "RatchetTopicGone": {"ratchet_topic_told": 0},
        "RatchetFailing": {"ratchet_failures": 2},
        "RatchetStuck": {"ratchet_oldest_unfinished_seconds": 4000},
        "RatchetBehind": {"ratchet_lag_age_seconds": 4000},
        "RatchetPaused": {"ratchet_paused_seconds": 100_000, "ratchet_lag_age_seconds": 100_000},
        "RatchetDestinationBehind": {"ratchet_destination_behind_seconds": 700},
        "RatchetDestinationDetached": {"ratchet_destination_detached_seconds": 100_000},
        "RatchetDeadLetters": {"ratchet_recent_dead_letters": 2, "ratchet_recent_records": 100},
        "RatchetReplaysGivenUp": {"ratchet_replays_given_up": 1},
        "RatchetUnattended": {"ratchet_since_maintenance_seconds": 700},
        "RatchetServerDown": {"ratchet_up": 0},
        "RatchetNotWatched": {},
    }
    rules = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert rules == list(cases)
    fine = {m.prometheus: 0 for m in MEASURES.values()} | {
        "ratchet_topic_told": 1,
        "ratchet_up": 1,
        "ratchet_retention_left_seconds": 1e6,
        "ratchet_recent_records": 100,
    }
    tests = []
    for alert, wrong in [*cases.items(), ("none", None)]:
        seen = {**fine, **(wrong or {})} if wrong != {} else {}
        series = [
            {"series": f'{name}{{pipeline="p", server="ledger"}}', "values": f"{value}x60"}
            for name, value in seen.items()
        ]
        wanted = {"alertname": alert} if alert in cases else {}
        tests.append({"interval": "1m", "input_series": series, "promql_expr_test": [{
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "30m",
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if wanted else [],
        }]})  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    done = subprocess.run([tool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_halted_line_is_called_out_until_a_person_has_decided(line: Line, prometheus: str):
    line.do("a")
    until(
        "nothing is wrong",
        lambda: httpx.get(f"{prometheus}/api/v1/query?query=ratchet_head").json()["data"]["result"],
        60,
    )
    assert "RatchetHalted" not in firing(prometheus)
    begun = line.begin("b")
    settle(line.ledger, line.spec, Run("dag", "b"), succeeded=False, reason="for the test")
    until("it is called out", lambda: "RatchetHalted" in firing(prometheus), 60)
    void(line.ledger, line.spec, begun.claim.txid, "for the test", "me")
    until("it is over", lambda: "RatchetHalted" not in firing(prometheus), 60)
