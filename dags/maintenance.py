"""The airflow DAG that keeps every pipeline's line going and clean."""

from ratchet.airflow.maintenance import maintenance_dag
from ratchet.spec.loading import modules

dag = maintenance_dag(len(modules()))
