"""Rows, last rows of keys, and sums go to a destination of every kind; the campaign alone gives it connections."""

import os

from ratchet import (
    Accumulate,
    Append,
    Arrivals,
    DeltaLake,
    Files,
    Iceberg,
    Json,
    KafkaTopic,
    Pipeline,
    Table,
    Topic,
    Upsert,
)
from tests.acceptance.transforms import HOLDS
from tests.proof.campaign.deployed import deployed

_ROWS, _HOME = "id bigint, owner string, balance bigint", f"{os.environ.get(HOLDS, os.devnull)}/sent"
_FIRST = Pipeline(
    name="sent",
    runs=Arrivals(),
    source=Topic("sent", key="id bigint", value=Json("owner string, balance bigint"), tombstones="delete"),
    transform="tests.proof.campaign.shapes:sent",
    sinks=[
        Append(
            "sent_rows", columns=_ROWS, to=[
                Table("sent.rows", database="elsewhere"), DeltaLake(f"{_HOME}/rows"), Files(f"{_HOME}/files"),
                Iceberg("sent.rows", catalog="lakehouse"),
            ],
        ),
        Upsert(
            "sent_last", key="id bigint not null", columns="owner string, balance bigint", to=[
                Table("sent.last", database="elsewhere"), DeltaLake(f"{_HOME}/last"), KafkaTopic("sent-last"),
                Iceberg("sent.last", catalog="lakehouse"),
            ],
        ),
        Accumulate(
            "sent_sums", key="shard int not null", sum="balance bigint", count="n", to=[
                Table("sent.sums", database="elsewhere"), DeltaLake(f"{_HOME}/sums"),
            ],
        ),
    ],
    max_records=40_000,
    slice_records=20_000,
    max_in_flight=2,
    lease_seconds=10,
    timeout_seconds=900,
    # No number of kills halts it, and none of commits that wait for a destination to be attached.
    max_failures=100_000,
)  # fmt: skip
VERSIONS = (
    _FIRST,
    # Only the transform is another one.
    _FIRST.model_copy(update={"transform": "tests.proof.campaign.shapes:sent_otherwise"}),
)
PIPELINE = deployed(VERSIONS)
