"""What of a transform's code is hashed: its module, and what that imports from its own package."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import uuid4

import pytest

from ratchet.errors import SpecError
from ratchet.spec.code import hash_of

FILES = {
    "__init__.py": "LIMIT = 1",
    "orders.py": "import json, absent.x\nfrom .rates import RATE\nfrom PACKAGE import names\nimport PACKAGE.deep.last",
    "rates.py": "from PACKAGE.sub.more import *",
    "names.py": "from . import orders, nowhere",
    "sub/__init__.py": "",
    "sub/more.py": "from ..far import away\nfrom .beside import one",
    "sub/beside.py": "raise SystemExit('it was run')",
    "far.py": "away = 1",
    "deep/last.py": "this is no Python",
    "apart.py": "from .orders import RATE",
}


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package of transforms, of a name that nothing else has."""
    home = tmp_path / f"jobs_{uuid4().hex[:8]}"
    for name, text in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text.replace("PACKAGE", home.name))
    monkeypatch.syspath_prepend(tmp_path)
    return home


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("changed", [name for name in FILES if name != "apart.py"])
def test_what_is_imported_from_the_same_package_is_hashed_and_not_run(package, changed):
    before = hash_of(f"{package.name}.orders")
    assert hash_of(f"{package.name}.orders") == before
    with (package / changed).open("a") as file:
        file.write("\n# changed")
    assert hash_of(f"{package.name}.orders") != before
    assert not any(name.startswith(f"{package.name}.") for name in sys.modules)


def test_what_is_not_imported_is_not_hashed(package):
    before = hash_of(f"{package.name}.orders")
    (package / "apart.py").write_text("OTHER = 1")
    (package / "unknown.py").write_text("")
    assert hash_of(f"{package.name}.orders") == before
    assert hash_of(f"{package.name}.apart") != before


def test_a_file_that_takes_anothers_name_is_another(package):
    (package / "names.py").write_text("from . import far, rates")
    before = hash_of(f"{package.name}.orders")
    one, other = package / "far.py", package / "rates.py"
    texts = one.read_text(), other.read_text()
    one.write_text(texts[1])
    other.write_text(texts[0])
    assert hash_of(f"{package.name}.orders") != before


@pytest.mark.parametrize("name", ["absent", "absent.orders", "PACKAGE.absent", "PACKAGE.deep", "PACKAGE.orders.absent"])
def test_a_module_that_is_not_there_is_named(package, name):
    name = name.replace("PACKAGE", package.name)
    with pytest.raises(SpecError, match=f"there is no module '{name}'"):
        hash_of(name)


def test_a_module_of_no_package_stands_alone(tmp_path, monkeypatch):
    alone = f"alone_{uuid4().hex[:8]}"
    (tmp_path / f"{alone}.py").write_text("import json")
    monkeypatch.syspath_prepend(tmp_path)
    before = hash_of(alone)
    (tmp_path / f"{alone}.py").write_text("import sys")
    assert hash_of(alone) != before
