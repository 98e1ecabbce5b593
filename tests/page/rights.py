"""Airflow's simple auth manager, in which some users have rights to some DAGs alone, as other managers can say."""

from __future__ import annotations

from fnmatch import fnmatch

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

LIMITED = {"ines": "line", "carla": "crowd*"}
"""{user: the names of the DAGs to which it has rights}."""


class Rights(SimpleAuthManager):
    def is_authorized_dag(self, *, method, user, access_entity=None, details=None) -> bool:
        names = LIMITED.get(user.get_name())
        if names is not None and (details is None or not fnmatch(details.id or "", names)):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
