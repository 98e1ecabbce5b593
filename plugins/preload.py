"""Loads the libraries of the tasks where tasks are forked from, so that no task spends its first second on imports.

Only libraries: what this project and its users write is read from disk by each task, as it is then.
"""

import importlib
import sys

LIBRARIES = (
    "kafka",
    "pandas",
    "psycopg",
    "pyarrow",
    "pyspark.sql.connect.session",
    "sqlalchemy.dialects.postgresql",
    "airflow.sdk.execution_time.task_runner",
)
FORKS_TASKS = {"scheduler", "worker"}
"""`airflow scheduler` with the LocalExecutor, `airflow celery worker`."""

if FORKS_TASKS & set(sys.argv):
    for library in LIBRARIES:
        importlib.import_module(library)
