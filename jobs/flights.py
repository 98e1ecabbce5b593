"""What becomes of a flight."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def transform(flights: DataFrame) -> dict[str, DataFrame]:
    """Flights in three views; what cannot be a flight goes to the dead letters with its reason."""
    seen = flights.withColumns(
        {
            "scheduled": F.col("time_hour") + F.make_dt_interval(mins=F.col("minute")),
            "delay": F.col("dep_delay"),
            "error": _fault(),
        }
    )
    good = seen.where(F.col("error").isNull())
    return {
        "flights": good,
        "delay_by_carrier_month": good.where(F.col("delay").isNotNull()),
        "last_flight": good.where(F.col("tailnum").isNotNull()),
        "dead_letters": seen.where(F.col("error").isNotNull()),
    }


def _fault():
    """Why this record is no flight, or null."""
    needed = ("time_hour", "minute", "carrier", "flight", "origin", "dest")
    missing = F.lit(None).cast("string")
    for name in reversed(needed):
        missing = F.when(F.col(name).isNull(), F.lit(f"a flight without {name}")).otherwise(missing)
    itself = F.format_string("a flight from %s to itself", F.col("origin"))
    return F.coalesce(missing, F.when(F.col("origin") == F.col("dest"), itself))
