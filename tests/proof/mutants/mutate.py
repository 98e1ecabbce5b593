"""Every mutant of some files, a line of JSON each; run by a Python that has cosmic-ray, which knows the mutations."""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names


def mutants(file: Path) -> Iterator[dict]:
    """What each mutation makes of a file; not what is no Python, and not what Python does not look at."""
    text = file.read_text()
    meaning = _meaning(text)
    for name in sorted(operator_names()):
        kind = get_operator(name)
        if kind.arguments() or name.endswith("NoOp"):
            continue
        operator = kind()
        places = [at for node in ast_nodes(get_ast_from_path(file)) for at in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(places):
            mutated = mutate_code(text, operator, occurrence)
            if mutated is None or _meaning(mutated) in (None, meaning):
                continue
            before, after = _changed(text, mutated)
            yield {
                "line": start[0],
                "operator": name.partition("/")[2],
                "before": before,
                "after": after,
                "text": mutated,
            }


def _meaning(text: str) -> str | None:
    """The code without annotations and docstrings; None if it is none."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.dump(tree)


def _changed(text: str, mutated: str) -> tuple[str, str]:
    old, new = text.splitlines(), mutated.splitlines()
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    return old[first].strip(), new[first].strip()


if __name__ == "__main__":
    for said in sys.argv[1:]:
        for mutant in mutants(Path(said)):
            print(json.dumps({"file": said, **mutant}))
