"""The unit tests need no server; Airflow, once imported, wants a home, which must not be the user's."""

import os
import tempfile

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="ratchet-airflow-"))
