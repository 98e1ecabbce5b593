"""The airflow DAG that keeps every pipeline's line going and clean."""

from ratchet.airflow.maintenance import maintenance_dag
from ratchet.spec.loading import read_specs

dag = maintenance_dag(read_specs()[0].values())
