"""The same through spark-submit."""

from tests.acceptance.pipelines.secret import PIPELINE as WARM

PIPELINE = WARM.model_copy(
    update={
        "name": "secret_cold",
        "source": WARM.source.model_copy(update={"name": "secret_cold"}),
        "transform": "tests.acceptance.transforms:secret_cold",
        "sinks": [WARM.sinks[0].model_copy(update={"name": "secret_cold_rows"})],
        "spark": "ratchet_spark_submit",
    }
)
