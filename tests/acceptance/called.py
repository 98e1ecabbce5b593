"""What the pipeline `strict` has Airflow call: each leaves a file."""

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference

from .transforms import HOLDS


def failed(context) -> None:
    Path(os.environ[HOLDS], f"strict.called.failed.{context['ti'].task_id}").touch()


async def is_late(**_) -> None:
    Path(os.environ[HOLDS], "strict.called.late").touch()


late = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(seconds=1), AsyncCallback(is_late))
