"""A DAG that is scheduled by a sink is told of each transaction that has committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.until import until

from .line import Line

pytestmark = pytest.mark.timeout(300)

TOLD = "told"


@pytest.fixture
def heard(warm: Line) -> Iterator[Line]:
    """The pipeline, while the DAG that is scheduled by its sink is not paused."""
    warm.find_dag(TOLD)
    warm.pause(False, TOLD)
    yield warm
    until("nobody is told any more", lambda: not warm.active(TOLD), 60)
    warm.pause(True, TOLD)


def told(line: Line) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """{(txid, revision): what the DAG's runs were told of it}."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in line.returned(TOLD, "see"):
        assert (event["pipeline"], event["sink"], event["watermark"].keys()) == ("warm", "warm_rows", {"0"})
        for told in event["transactions"]:
            found.setdefault((told["txid"], told["revision"]), []).append(told | {"watermark": event["watermark"]["0"]})
    return found


@pytest.mark.all
def test_each_committed_transaction_is_told_with_its_numbers_also_one_that_another_commit_took_along(heard: Line):
    heard.publish(100)
    first = heard.trigger_held()
    heard.publish(40)
    second = heard.trigger()
    heard.task(second, "commit", "deferred")
    # Its own commit will tell nothing.
    heard.mark(second, "success")
    assert heard.ended(second) == "failed"
    earlier, later = heard.transaction(first).txid, heard.transaction(second).txid
    assert not {(earlier, 0), (later, 0)} & told(heard).keys(), "neither is committed"
    heard.release()
    assert heard.ended(first) == "success"
    until("both are told", lambda: {(earlier, 0), (later, 0)} <= told(heard).keys())
    for txid, rows in ((earlier, 100), (later, 40)):
        from_offset, until_offset = heard.range(txid)
        (said,) = told(heard)[txid, 0]
        assert said.pop("committed_at") and said == {
            "txid": txid,
            "revision": 0,
            "ranges": [{"topic": "warm", "partition": 0, "from": from_offset, "until": until_offset}],
            "rows": rows,
            "watermark": heard.reached(),
        }
    # A revision is told as one, and a run that commits nothing tells nothing.
    known = told(heard).keys()
    heard.clear(first)
    assert heard.ended(first) == "success"
    assert heard.ended(heard.trigger()) == "success"
    until("the revision is told", lambda: (earlier, 1) in told(heard))
    assert told(heard).keys() - known == {(earlier, 1)}
    heard.is_whole()
