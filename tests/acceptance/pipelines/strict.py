"""Two failures halt it, few dead letters pass, an epoch has ten minutes, and a run one second."""

from ratchet import Append, Json, MaxDeadLetters, Pipeline, Topic

PIPELINE = Pipeline(
    name="strict",
    source=Topic("strict", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:strict",
    sinks=[Append("strict_rows", columns="k string, v bigint")],
    max_records=100,
    slice_records=100,
    max_in_flight=4,
    lease_seconds=5,
    timeout_seconds=600,
    max_failures=2,
    gates=[MaxDeadLetters(0.1)],
    airflow={
        "default_args": {"on_failure_callback": "tests.acceptance.called:failed"},
        "deadline": "tests.acceptance.called:late",
    },
)
