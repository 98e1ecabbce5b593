"""Records start its runs: twenty of them, or fewer that have waited for 5 seconds; its rows have three destinations."""

import os
from datetime import timedelta

from ratchet import Append, Arrivals, DeltaLake, Json, KafkaTopic, Pipeline, Table, Topic
from tests.acceptance.transforms import HOLDS

PIPELINE = Pipeline(
    name="arriving",
    runs=Arrivals(min_records=20, max_wait=timedelta(seconds=5)),
    source=Topic("arriving", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:arriving",
    sinks=[
        Append(
            "arriving_rows",
            columns="k string, v bigint",
            to=[
                Table("elsewhere.arriving", database="ratchet_ledger"),
                KafkaTopic("arriving-out", key="k"),
                DeltaLake(f"{os.environ[HOLDS]}/lake", partition_by="k"),
            ],
        )
    ],
    max_records=100,
    slice_records=100,
    max_in_flight=2,
    lease_seconds=5,
)
