"""Figures that tests note, in a table at the end of the session, whichever process has run them."""

from __future__ import annotations

from typing import Any


def noted(terminalreporter: Any, name: str) -> list[list[Any]]:
    """The rows that tests have left by `record_property(name, row)`, in the order in which they ended."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    return [
        row
        for report in reports
        if getattr(report, "when", None) == "call"
        for property_name, row in report.user_properties
        if property_name == name
    ]
