"""One Airflow DAG for each pipeline in include/pipelines; where a task of one of them runs, that one alone."""

from airflow.sdk import get_parsing_context

from ratchet.airflow.arguments import fault
from ratchet.airflow.factory import make_dag
from ratchet.spec.loading import load_pipeline, read_specs

wanted = get_parsing_context().dag_id
for spec in [load_pipeline(wanted)] if wanted else [spec for spec in read_specs()[0].values() if not fault(spec)]:
    globals()[spec.name] = make_dag(spec)
