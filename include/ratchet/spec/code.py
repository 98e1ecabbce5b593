"""Code: the files that a transform's results depend on, read as text and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from ratchet.errors import SpecError

Found = dict[str, ModuleSpec | None]
"""What was found of each name, while one hash is made."""


def hash_of(module: str) -> str:
    """A hash of a module and of all that it imports, directly or not, from its own top-level package.

    What it imports by names that are made when it runs is not found. SpecError where there is no such module.
    """
    return sha256(b"".join(sorted(_digests(module)))).hexdigest()


@lru_cache(maxsize=1)
def library_hash() -> str:
    """A hash of this library as it is on disk: workers that have imported another version must not serve this one."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return sha256(b"".join(sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def _digests(module: str) -> Iterator[bytes]:
    top = module.partition(".")[0]
    seen: set[str] = set()
    # Nothing is known from one hash to the next: a long-lived process sees what a deploy has changed.
    known: Found = {}
    files = {name: _file(name, known) for name in _with_parents(module)}
    if files[module] is None:
        raise SpecError(f"Pipeline.transform: there is no module {module!r}")
    while files:
        name, file = files.popitem()
        seen.add(name)
        # `from jobs.rules import RATES` may name a module as well as what is in one.
        if file is None:
            continue
        source = file.read_bytes()
        yield sha256(name.encode() + b"\0" + source).digest()
        package = name if file.stem == "__init__" else name.rpartition(".")[0]
        for imported in _imports(source, package):
            for found in _with_parents(imported):
                if found not in seen and found.partition(".")[0] == top:
                    files[found] = _file(found, known)


def _file(module: str, known: Found) -> Path | None:
    """Where a module's source is; None if it is none, or has none. Only its top-level package is asked of Python."""
    found = _spec(module, known)
    return Path(found.origin) if found is not None and found.has_location and found.origin else None


def _spec(module: str, known: Found) -> ModuleSpec | None:
    """What Python's import would find of a name, looked for once and then `known`."""
    if module not in known:
        package, _, last = module.rpartition(".")
        try:
            above = _spec(package, known) if package else None
            if not package:
                known[module] = find_spec(last)
            elif above is None or above.submodule_search_locations is None:
                known[module] = None
            else:
                # By its last name alone: by its full one, Python would look for the package among what was imported.
                known[module] = PathFinder.find_spec(last, list(above.submodule_search_locations))
        except (ImportError, ValueError):
            known[module] = None
    return known[module]


@lru_cache(maxsize=1024)
def _imports(source: bytes, package: str) -> frozenset[str]:
    """Every name that a source imports, in full; none where it is no Python, which importing it will say."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            whole = ".".join(filter(None, (above, node.module)))
            names |= {whole} | {f"{whole}.{alias.name}" for alias in node.names}
    return frozenset(names)


def _with_parents(module: str) -> Iterator[str]:
    """The module and the packages that importing it runs before."""
    parts = module.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))
