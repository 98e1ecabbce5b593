"""Several rows a record, or none, of three partitions; some records are given up by the transform."""

from ratchet import Accumulate, Append, Arrivals, Json, MaxDeadLetters, Pipeline, Topic, Upsert
from tests.proof.campaign.deployed import deployed

_FIRST = Pipeline(
    name="events",
    runs=Arrivals(),
    source=Topic("events", value=Json("k string, at bigint, times int, v bigint")),
    transform="tests.proof.campaign.shapes:events",
    sinks=[
        Append("events_rows", columns="k string, at bigint, v bigint"),
        Accumulate("events_sums", key="k string, odd int", sum="v bigint", max="at bigint", count="n"),
        Upsert("events_last", key="k string", columns="at bigint, v bigint", order="at"),
    ],
    max_records=30_000,
    slice_records=15_000,
    max_in_flight=2,
    lease_seconds=10,
    timeout_seconds=900,
    # It looks and never says no: a transaction of a single bad record would hold up the line until somebody comes.
    gates=[MaxDeadLetters(1)],
)
VERSIONS = (
    _FIRST,
    # More records are given up: rows go, and dead letters come.
    _FIRST.model_copy(update={"transform": "tests.proof.campaign.shapes:events_of_few"}),
)
PIPELINE = deployed(VERSIONS)
