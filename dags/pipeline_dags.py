"""One Airflow DAG for each pipeline in include/pipelines."""

from ratchet.airflow.factory import make_dag
from ratchet.spec.loading import read_specs

for spec in read_specs()[0].values():
    globals()[spec.name] = make_dag(spec)
