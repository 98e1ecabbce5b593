"""Shows each airflow pipeline spec that cannot be read as this file's import error; the other DAGs stay."""

from ratchet.airflow.arguments import fault
from ratchet.errors import SpecError
from ratchet.spec.loading import read_specs

specs, faults = read_specs()
faults += [f"{name}: {wrong}" for name, spec in specs.items() if (wrong := fault(spec))]
if faults:
    raise SpecError("\n".join(faults))
