"""What people read of a command suits where it is printed: whole lines in a pipe, whole words on a narrow terminal."""

import pytest
from rich.table import Table
from rich.text import Text

from ratchet.printing import print_lines, print_parts

LINE = "flights: transaction 7 is halted: jobs.flights:transform raised KeyError: 'GBP' (jobs/flights.py, line 17)"


def table(columns: int) -> Table:
    found = Table(title=Text("flights: 2 rows"))
    for number in range(columns):
        found.add_column(Text(f"scheduled_{number}"), overflow="fold")
    for row in "ab":
        found.add_row(*(Text(f"[{row}]2013-01-0{number}") for number in range(columns)))
    return found


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_a_pipe_is_given_whole_lines_and_a_terminal_whole_words(capsys, monkeypatch):
    print_lines([LINE, "[red]not markup :smile:"])
    assert capsys.readouterr().out == f"{LINE}\n[red]not markup :smile:\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_lines([LINE], err=True)
    said = capsys.readouterr()
    lines = [line.strip() for line in said.err.splitlines()]
    assert said.out == "" and len(lines) > 1 and max(map(len, lines)) <= 60
    assert " ".join(lines) == LINE


def test_a_table_that_fits_stays_one(capsys):
    print_parts([table(2)])
    said = capsys.readouterr().out
    assert said.count("scheduled_0") == 1 and "flights: 2 rows" in said


def test_a_table_that_would_break_names_is_printed_a_record_at_a_time(capsys):
    print_parts([table(9), "and a line"])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "flights: 2 rows"
    assert lines[1:10] == [f"scheduled_{number}  [a]2013-01-0{number}" for number in range(9)]
    assert lines[10] == "" and lines[11] == "scheduled_0  [b]2013-01-00" and lines[-1] == "and a line"
