"""What becomes of a change to the register of aircraft."""

from pyspark.sql import DataFrame


def transform(planes: DataFrame) -> dict[str, DataFrame]:
    """The register as it is told: a row for each tail number, or its deletion."""
    return {"aircraft": planes}
