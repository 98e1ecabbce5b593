"""Shows each airflow pipeline spec that cannot be read as this file's import error; the other DAGs stay."""

from ratchet.errors import SpecError
from ratchet.spec.loading import read_specs

faults = read_specs()[1]
if faults:
    raise SpecError("\n".join(faults))
