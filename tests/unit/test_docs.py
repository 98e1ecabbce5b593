"""The documents against the code: what they name exists, what they list is complete."""

from __future__ import annotations

import ast
import json
import re
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from ratchet.errors import SpecError
from ratchet.ledger.schema import metadata
from ratchet.ledger.states import LEGAL_MOVES, State
from ratchet.operate.doctor.finding import CODES
from ratchet.protocol import commit as commit_module
from ratchet.sinks.checksum import batch_checksum, row_hash
from ratchet.spec.columns import parse_columns
from ratchet.spec.pipeline import Pipeline
from tests.unit.test_checksum import batch_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PROTOCOL = ROOT / "docs" / "protocol.md"
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[tuple[str, str, str]]:
    """(language, file or "", text) of every code block."""
    return FENCE.findall(path.read_text())


def prose(path: Path) -> list[tuple[int, str]]:
    """(line number, text) of the lines that hold sentences: no code, tables, headings or pictures."""
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), path.read_text())
    lines = enumerate(text.splitlines(), start=1)
    return [(n, line) for n, line in lines if line.strip() and not re.match(r"\s*(#|\||!\[|<!--)", line)]


def section(path: Path, heading: str) -> str:
    """The text below a heading, up to the next heading of its kind."""
    level = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^{level} |\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{path.name} has no section {heading!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without the header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def every_test() -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every test function there is."""
    return [
        node
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def defined_tests() -> set[str]:
    """The name of every test function there is."""
    return {test.name for test in every_test()}


def invariants_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """What a test's `@pytest.mark.invariant("I3", "I5")` names."""
    marks = [mark for mark in test.decorator_list if ast.unparse(mark).startswith("pytest.mark.invariant(")]
    return {ast.literal_eval(name) for mark in marks if isinstance(mark, ast.Call) for name in mark.args}


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_every_test_that_is_named_exists(path):
    named = set(re.findall(r"`(test_\w+)`", path.read_text()))
    assert named - defined_tests() == set()


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_every_link_leads_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file) if file else path
        assert found.exists(), f"{path.name}: {target}"
        headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE) if found.suffix == ".md" else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_every_folder_that_a_table_names_exists(path):
    cells = {cells[0] for cells in rows(path.read_text())}
    named = {folder for cell in cells for folder in re.findall(r"`([\w/]+/[\w/]*)`", cell)}
    assert [folder for folder in sorted(named) if not (ROOT / folder).is_dir()] == []


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_each_line_is_one_sentence(path):
    for number, line in prose(path):
        said = re.sub(r"^\s*(- |\d+\. )", "", re.sub(r"`[^`]*`", "code", line))
        where = f"{path.name}:{number}: {line}"
        assert not re.search(r"[.!?]\s+[A-Z]", said), where
        assert said in ("code", "") or said.endswith((".", ":", "?")), where


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_every_make_target_that_is_named_exists(path):
    makefile = (ROOT / "Makefile").read_text()
    targets = {name for line in re.findall(r"^([a-z][\w -]*):(?!=)", makefile, re.MULTILINE) for name in line.split()}
    text = path.read_text()
    named = set(re.findall(r"`make ([\w-]+)", text)) | set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE))
    assert named - targets == set()


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_the_code_in_the_docs_is_valid_and_its_specs_are_accepted(path):
    for language, file, text in blocks(path):
        if language != "python":
            continue
        code = compile(text, f"{path.name}: {file}", "exec")
        if file.startswith("include/pipelines/"):
            said: dict = {}
            try:
                exec(code, said)
            except SpecError as error:
                pytest.fail(f"{path.name}: {file}: {error}")
            assert isinstance(said["PIPELINE"], Pipeline)
            assert said["PIPELINE"].name == Path(file).stem


def test_the_glossary_defines_each_word_once_and_the_docs_use_them():
    words = [cells[0] for cells in rows((ROOT / "docs" / "glossary.md").read_text())]
    every = [word.strip() for cell in words for word in cell.split(",")]
    assert len(every) == len(set(every))
    others = " ".join(path.read_text().lower() for path in DOCS if path.name != "glossary.md")
    assert [word for word in every if word not in others] == []


def test_the_diagram_and_the_table_of_states_are_the_legal_moves():
    text = section(PROTOCOL, "## States")
    drawn = {(None if a == "[*]" else State(a), State(b)) for a, b in re.findall(r"^ +(\S+) --> (\S+):", text, re.M)}
    listed = {(None if cells[0] == "–" else State(cells[0]), State(cells[1])) for cells in rows(text)}
    assert drawn == listed == LEGAL_MOVES


def test_the_protocol_lists_every_table_of_the_ledger():
    listed = {cells[0].strip("`") for cells in rows(section(PROTOCOL, "## The ledger"))}
    assert listed == {table.name for table in metadata.tables.values()}


def test_the_protocol_has_the_commits_steps():
    steps = re.compile(r"^ *(\d+)\. ", re.MULTILINE)
    written = steps.findall(section(PROTOCOL, "### commit"))
    assert written == steps.findall(commit_module.commit.__doc__)
    in_the_body = re.findall(r"# Step (\d+)", Path(commit_module.__file__).read_text())
    assert sorted(in_the_body, key=int) == written


def test_the_test_vectors_of_the_row_checksum():
    makers = {"date": date.fromisoformat, "timestamp": datetime.fromisoformat, "decimal": Decimal}
    vectors = [cells for cells in rows(section(PROTOCOL, "## The checksum of a vote")) if len(cells) == 3]
    assert len(vectors) > 10
    for ddl, said, expected in ([cell.strip("`") for cell in cells] for cells in vectors):
        if not re.fullmatch(r"[0-9a-f]{16}", expected):
            continue
        columns = parse_columns(ddl)
        values = [
            value if value is None else makers.get(str(c.type).partition("(")[0], lambda v: v)(value)
            for c, value in zip(columns, json.loads(said), strict=True)
        ]
        assert f"{row_hash(columns, values):016x}" == expected, (ddl, said)
        assert f"{batch_checksum(columns, batch_of(columns, [values])):016x}" == expected, (ddl, said)


def test_the_codes_of_findings_are_those_of_the_code():
    text = section(ROOT / "docs" / "operations.md", "## Examine everything")
    assert {code.strip("`"): meaning for code, meaning in rows(text)} == CODES


def test_every_invariant_is_named_with_what_holds_it():
    text = section(PROTOCOL, "## Invariants")
    listed = [cells[0] for cells in rows(text)]
    assert listed == [f"I{n}" for n in range(1, 13)]
    held = set(re.findall(r"^(I\d+), ", text, re.MULTILINE))
    open_ = set(re.findall(r"^- (I\d+): ", text, re.MULTILINE))
    assert held | open_ == set(listed), "each has its tests, or is said to have none"


def test_the_tests_listed_for_each_invariant_are_those_that_carry_its_marker():
    text = section(PROTOCOL, "### The tests that hold them")
    paragraphs = re.findall(r"^(I\d+), .*:\n((?:- `test_\w+`\n)+)", text, re.MULTILINE)
    listed = {(name, test) for name, tests in paragraphs for test in re.findall(r"`(test_\w+)`", tests)}
    marked = {(name, test.name) for test in every_test() for name in invariants_of(test)}
    assert sorted(listed - marked) == [], "listed in docs/protocol.md, and without the marker"
    assert sorted(marked - listed) == [], "marked, and not listed in docs/protocol.md"
