"""The register of aircraft: one row for each tail number, kept up to date by a keyed topic."""

from ratchet import Arrivals, Json, Pipeline, Topic, Upsert

COLUMNS = "year int, type string, manufacturer string, model string, engines int, seats int, engine string"

PIPELINE = Pipeline(
    name="aircraft",
    description="Every aircraft that is registered now; a tombstone takes one off the register.",
    source=Topic("planes", value=Json(COLUMNS), key="tailnum string", tombstones="delete"),
    sinks=[Upsert("aircraft", key="tailnum string", columns=COLUMNS)],
    runs=Arrivals(),
    max_records=2_000,
    slice_records=1_000,
    max_in_flight=2,
    tags=["demo"],
)
