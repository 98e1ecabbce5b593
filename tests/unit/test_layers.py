"""Each folder of ratchet imports from the others what its docstring says, and no folder imports itself by a detour."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
RATCHET = CHECKOUT / "include" / "ratchet"
FOLDERS = sorted({path.relative_to(RATCHET).parts[0] for path in RATCHET.glob("*/**/*.py")})


def unit_of(module: str) -> str:
    """The folder that holds a module, or the module beside the folders; "ratchet" is the package's own `__init__`."""
    name = (module.split(".") + ["__init__"])[1]
    is_unit = (RATCHET / name / "__init__.py").is_file() or (RATCHET / f"{name}.py").is_file()
    return name if is_unit and name != "__init__" else "ratchet"


def imported(source: str) -> set[str]:
    """The units of ratchet that a source imports anywhere: also in a function and below TYPE_CHECKING."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides what it imports"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {unit_of(module) for module in modules if module.split(".")[0] == "ratchet"}


@cache
def graph() -> dict[str, set[str]]:
    """What each unit imports from others; a folder within a folder is part of it."""
    found: dict[str, set[str]] = {}
    for path in RATCHET.rglob("*.py"):
        first = path.relative_to(RATCHET).parts[0]
        unit = "ratchet" if first == "__init__.py" else first.removesuffix(".py")
        found.setdefault(unit, set()).update(imported(path.read_text()) - {unit})
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_what_its_docstring_says(folder):
    doc = ast.get_docstring(ast.parse((RATCHET / folder / "__init__.py").read_text())) or ""
    assert re.match(r"[A-Z][^\n]+\.$", doc, re.MULTILINE), "the first line says what the folder is for"
    said = re.search(r"^Imports: (.+)\.$", doc, re.MULTILINE)
    truth = ", ".join(sorted(graph()[folder]))
    assert said and said[1] == truth, f"ratchet.{folder} imports: {truth}; right, and its docstring is not, or undo it"


def test_no_folder_imports_itself_by_a_detour():
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail("imports go round: " + " <- ".join(error.args[1]))


@pytest.mark.parametrize("script", ["include/ratchet/spark/connect_server.py", "jobs/process_slice.py"])
def test_no_neighbour_of_what_spark_runs_hides_a_module_of_python(script):
    """Python looks first where such a file lies, before its own library has been loaded."""
    path = CHECKOUT / script
    assert 'if __name__ == "__main__":' in path.read_text()
    assert {neighbour.stem for neighbour in path.parent.glob("*.py")} & sys.stdlib_module_names == set()


def test_an_import_is_found_wherever_it_stands():
    source = """
import ratchet.cli
from ratchet import Append, errors
from ratchet.dev.stack import Stack
if TYPE_CHECKING:
    from ratchet.sinks.fold import Delta
def late():
    import ratchet.source.kafka as kafka
    from pandas.errors import ParserError
"""
    assert imported(source) == {"ratchet", "cli", "errors", "dev", "sinks", "source"}


def set_elsewhere(source: str) -> list[int]:
    """The lines outside of functions that set what an imported module holds, as in `module.LIMIT = 1`."""
    nodes: list[ast.AST] = [ast.parse(source)]
    aliases = [
        name for node in ast.walk(nodes[0]) for name in getattr(node, "names", ()) if isinstance(name, ast.alias)
    ]
    imported = {(name.asname or name.name).split(".")[0] for name in aliases}
    found = []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node).split(".")[0] in imported:
                found.append(node.lineno)
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, inner)]
    return sorted(set(found))


def test_importing_a_module_of_tests_changes_no_other():
    """All tests of a process share it: a limit set by an import would be every other test's too."""
    paths = (CHECKOUT / "tests").rglob("*.py")
    found = {str(path.relative_to(CHECKOUT)): set_elsewhere(path.read_text()) for path in paths}
    wrong = {path: lines for path, lines in found.items() if lines}
    assert wrong == {}, "set it in a fixture, or where a process of its own begins"


def test_a_limit_set_by_an_import_is_found_wherever_it_stands():
    assert set_elsewhere("import a\nif True:\n    a.X, b = 1, 2\na.b.Y: int = 1\na.Z += 1") == [3, 4, 5]
    assert set_elsewhere("from m import a\nb = a()\nb.X = 1\ndef f():\n    a.X = 1\nclass A:\n    y = 1") == []
