"""The unit tests need no server; Airflow, once imported, wants a home, which must not be the user's."""

import os
import tempfile

from hypothesis import HealthCheck, settings

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="ratchet-airflow-"))

# A machine that is busy is no fault; what fails can be repeated from what is printed.
settings.register_profile("unit", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
