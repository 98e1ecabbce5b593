"""The last row of each Kafka key, which tombstones delete; every key is produced to one of two partitions."""

from ratchet import Accumulate, Arrivals, Json, Pipeline, Topic, Upsert
from tests.proof.campaign.deployed import deployed

_FIRST = Pipeline(
    name="accounts",
    runs=Arrivals(),
    source=Topic("accounts", key="id bigint", value=Json("owner string, balance bigint"), tombstones="delete"),
    transform="tests.proof.campaign.shapes:accounts",
    sinks=[
        Upsert("accounts_last", key="id bigint", columns="owner string, balance bigint"),
        Accumulate(
            "accounts_sums", key="owner string", sum="balance bigint", min="balance bigint", max="balance bigint",
            count="n",
        ),
    ],
    max_records=40_000,
    slice_records=20_000,
    max_in_flight=2,
    lease_seconds=10,
    timeout_seconds=900,
    # No number of kills halts it; others halt, and people have them tried again.
    max_failures=100_000,
)  # fmt: skip
_WIDER = Upsert("accounts_last", key="id bigint", columns="owner string, balance bigint, length int")
VERSIONS = (
    _FIRST,
    # A column comes.
    _FIRST.model_copy(
        update={"transform": "tests.proof.campaign.shapes:accounts_measured", "sinks": [_WIDER, _FIRST.sinks[1]]}
    ),
    # Only the transform is another one.
    _FIRST.model_copy(
        update={"transform": "tests.proof.campaign.shapes:accounts_owed", "sinks": [_WIDER, _FIRST.sinks[1]]}
    ),
)
PIPELINE = deployed(VERSIONS)
