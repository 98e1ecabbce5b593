"""What is installed: an editable install finds every module, whatever pyproject.toml lists."""

import tomllib

from tests.unit.test_docs import ROOT


def test_every_package_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    include = ROOT / "include"
    found = {".".join(each.parent.relative_to(include).parts) for each in include.rglob("__init__.py")}
    assert set(listed) == found | {"jobs"}
