"""Rows and exact sums of four partitions; what is no JSON is a dead letter."""

from ratchet import Accumulate, Append, Arrivals, Json, Pipeline, Topic
from tests.proof.campaign.deployed import deployed

_ROWS, _MEASURED = "k string, v bigint, note string", "v bigint, length int"
_FIRST = Pipeline(
    name="orders",
    runs=Arrivals(),
    source=Topic("orders", value=Json(_ROWS)),
    transform="tests.proof.campaign.shapes:orders",
    sinks=[
        Append("orders_rows", columns=_ROWS),
        Accumulate("orders_sums", key="k string", sum="v bigint", min="v bigint", max="v bigint", count="n"),
    ],
    max_records=40_000,
    slice_records=20_000,
    max_in_flight=2,
    lease_seconds=10,
    # A worker that stands still for ever would hold up its slice for ever.
    timeout_seconds=900,
)
_SUMS = Accumulate("orders_sums", key="k string", sum="v bigint", min="v bigint", max=_MEASURED, count="n")
VERSIONS = (
    _FIRST,
    # A column and a measure come.
    _FIRST.model_copy(
        update={
            "transform": "tests.proof.campaign.shapes:orders_measured",
            "sinks": [Append("orders_rows", columns=f"{_ROWS}, length int"), _SUMS],
        }
    ),
    # They are taken back, as far as that can be: keys have a value of the measure.
    _FIRST.model_copy(
        update={
            "transform": "tests.proof.campaign.shapes:orders_unmeasured",
            "sinks": [Append("orders_rows", columns=_ROWS), _SUMS],
        }
    ),
)
PIPELINE = deployed(VERSIONS)
