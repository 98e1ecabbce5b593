"""The page: one file that needs nothing else, made from page.html."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .record import NOT_NOW, STRUCK, PartRecord
from .timeline import GROUPS, Timeline, clock, group

if TYPE_CHECKING:
    from .report import Report

SHOWN = 20
"""So many examples of one error are on the page; the JSON has all."""


def render(report: Report) -> str:
    """The page's HTML; whatever the records say is escaped in it."""
    template = _environment().get_template("page.html")
    worst = max((one.worst for one in report.recovery if one.worst is not None), default=0.0)
    return template.render(
        report=report,
        timelines=[Timeline.of(part, report.tallest) for part in report.parts],
        worst=worst or 1.0,
        never=sorted(one.kind for one in report.recovery if not one.struck),
        groups=[name for name in GROUPS if any(group(one.kind) == name for one in report.recovery)],
        shown=SHOWN,
        STRUCK=STRUCK,
        NOT_NOW=NOT_NOW,
    )


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": _number,
        "seconds": lambda value: "–" if value is None else f"{value:,.1f}",
        "bytes": lambda value: f"{value / 2**30:.1f} GiB",
        "group": group,
        "clock": clock,
        "day": lambda moment: f"{_utc(moment):%Y-%m-%d}",
        "minute": lambda moment: f"{_utc(moment):%H:%M}",
        "span": _span,
        "glued": lambda said: re.sub(r"(?<=\d) ", "\N{NO-BREAK SPACE}", said),
    }
    return made


def _number(value: int | float) -> str:
    """A count with its thousands apart; a share, which is a float, in percent."""
    return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _span(part: PartRecord | Any) -> str:
    """2026-11-21 10:00–11:00 UTC; the second day is said where it is another one."""
    began, ended = _utc(part.began), _utc(part.ended)
    until = f"{ended:%H:%M}" if began.date() == ended.date() else f"{ended:%Y-%m-%d %H:%M}"
    return f"{began:%Y-%m-%d %H:%M}–{until} UTC"
