"""Airflow's simple auth manager, in which one user has rights to one DAG alone, as other managers can say."""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

LIMITED, TO = "ines", "line"


class Rights(SimpleAuthManager):
    def is_authorized_dag(self, *, method, user, access_entity=None, details=None) -> bool:
        if user.get_name() == LIMITED and (details is None or details.id != TO):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
