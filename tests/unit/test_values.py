"""What the protocol's steps hand to one another is what they were given: nobody changes it on the way."""

import importlib
import pkgutil
from dataclasses import is_dataclass

import ratchet
from ratchet import ledger, operate, protocol, sinks, spec


def test_values_cannot_be_changed():
    modules = [
        importlib.import_module(found.name)
        for package in (ratchet, ledger, operate, protocol, sinks, spec)
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        if not found.ispkg and not found.name.endswith("__main__")
    ]
    values = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    values = {kind for kind in values if is_dataclass(kind) and kind.__module__.startswith("ratchet.")}
    assert len(values) > 20
    assert {kind.__name__ for kind in values if not kind.__dataclass_params__.frozen} == set()
