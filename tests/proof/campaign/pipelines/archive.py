"""Rows alone, in large transactions, through spark-submit."""

from ratchet import Append, Arrivals, Json, Pipeline, Topic
from tests.proof.campaign.deployed import deployed

_FIRST = Pipeline(
    name="archive",
    runs=Arrivals(),
    source=Topic("archive", value=Json("id bigint, body string")),
    transform="tests.proof.campaign.shapes:archive",
    sinks=[Append("archive_rows", columns="id bigint, body string")],
    max_records=100_000,
    slice_records=100_000,
    # On two processors two drivers at once keep each other from coming to an end for minutes.
    max_in_flight=1,
    lease_seconds=10,
    timeout_seconds=900,
    # No number of kills halts it; others halt, and people have them tried again.
    max_failures=100_000,
    spark="ratchet_spark_submit",
)
_WIDER = Append("archive_rows", columns="id bigint, body string, length int")
VERSIONS = (
    _FIRST,
    # A column comes, and goes.
    _FIRST.model_copy(update={"transform": "tests.proof.campaign.shapes:archive_measured", "sinks": [_WIDER]}),
    _FIRST,
)
PIPELINE = deployed(VERSIONS)
