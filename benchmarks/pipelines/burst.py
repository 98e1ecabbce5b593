"""Six transactions at once: how long the last waits for its turn."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="burst",
    source=Topic("burst", value=Json("account string, amount bigint"), key="id string"),
    transform="benchmarks.transforms:burst",
    sinks=[Append("burst_rows", columns="id string, account string, amount bigint")],
    max_records=1_000,
    max_in_flight=6,
)
