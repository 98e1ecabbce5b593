"""What people read of a command suits where it is printed: whole lines in a pipe, whole words on a narrow terminal."""

import sys

import pytest
from rich.table import Table
from rich.text import Text

from ratchet import cli
from ratchet.errors import SettingsError
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


def on_a_terminal(monkeypatch) -> None:
    """What is printed from here on goes to one; pytest has other streams while fixtures are made."""
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("colour", [None, "1"])
def test_a_pipe_is_given_whole_lines_also_with_colours(capsys, monkeypatch, colour: str | None):
    if colour:
        monkeypatch.setenv("FORCE_COLOR", colour)
    lines = [LINE, "[red]not markup :smile:", "a\tb", "", "a\nb"]
    print_lines(lines)
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in lines)


def test_an_error_is_one_line_in_a_pipe_also_with_colours(capsys, monkeypatch):
    def fail() -> None:
        raise SettingsError(LINE)

    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(SystemExit):
        cli.main(fail)
    assert capsys.readouterr().err.endswith(f" {LINE}\n")


def test_a_terminal_is_given_whole_words(capsys, monkeypatch):
    on_a_terminal(monkeypatch)
    print_lines([LINE, "  a\tb"], err=True)
    said = capsys.readouterr()
    *lines, last = said.err.splitlines()
    assert said.out == "" and len(lines) > 1 and max(map(len, lines)) <= 60
    assert " ".join(lines) == LINE and last == "  a\tb"


@pytest.mark.parametrize("before", range(62))
@pytest.mark.parametrize("quote", ["", "the value ` is odd; ", "`USD` and `odd ` "], ids=["none", "odd", "three"])
def test_no_command_is_broken_wherever_it_stands(capsys, monkeypatch, before: int, quote: str):
    on_a_terminal(monkeypatch)
    command = "`ratchet void flights 7 --reason …`"
    print_lines([f"{quote}{'x' * before} {command} gives it up, and the line goes on without its records"])
    lines = capsys.readouterr().out.splitlines()
    assert [command in line for line in lines].count(True) == 1
    assert all(len(line) <= 60 or " " not in line for line in lines) and not any(line.endswith(" ") for line in lines)


def test_a_command_wider_than_the_terminal_is_a_line(capsys, monkeypatch):
    on_a_terminal(monkeypatch)
    command = f"`ratchet detach flights {'x' * 60}`"
    print_lines([f"it is gone; {command} lets the line go on"])
    assert capsys.readouterr().out.splitlines() == ["it is gone;", command, "lets the line go on"]


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
