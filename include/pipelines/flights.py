"""The flights out of New York: every flight, the delays per carrier and month, each aircraft's last flight."""

from ratchet import Accumulate, Append, Arrivals, Json, Pipeline, Topic, Upsert

PIPELINE = Pipeline(
    name="flights",
    description="Flights that left New York in 2013, as the airports reported them.",
    source=Topic(
        "flights",
        value=Json(
            "month int, day int, time_hour timestamp, minute int, carrier string, flight int, tailnum string, "
            "origin string, dest string, dep_delay int, arr_delay int, air_time int, distance int"
        ),
    ),
    transform="jobs.flights:transform",
    sinks=[
        Append(
            "flights",
            columns="scheduled timestamp not null, carrier string not null, flight int not null, "
            "tailnum string, origin string not null, dest string not null, dep_delay int, arr_delay int, "
            "air_time int, distance int",
        ),
        Accumulate(
            "delay_by_carrier_month",
            key="carrier string, month int",
            sum="delay int",
            min="delay int",
            max="delay int",
            count="departures",
        ),
        Upsert(
            "last_flight",
            key="tailnum string",
            columns="scheduled timestamp, carrier string, flight int, origin string, dest string",
            order="scheduled",
        ),
    ],
    runs=Arrivals(),
    max_records=50_000,
    slice_records=25_000,
    max_in_flight=4,
    tags=["demo"],
)
