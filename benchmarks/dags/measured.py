"""What `benchmarks/latency.py` measures: the pipelines of its specs, and beside them three tasks that do nothing."""

from airflow.sdk import DAG, task

from ratchet.airflow.factory import make_dag
from ratchet.spec.loading import read_specs

for spec in read_specs()[0].values():
    globals()[spec.name] = make_dag(spec)


@task
def nothing() -> None:
    """A task as Airflow runs any; an EmptyOperator would not be run at all."""


with DAG("three_empty_tasks", schedule=None, catchup=False) as dag:
    tasks = [nothing.override(task_id=name)() for name in ("first", "second", "third")]
    tasks[0] >> tasks[1] >> tasks[2]
