"""What is said of a value that is none of its type."""

from __future__ import annotations

from ratchet.values.withheld import WITHHELD

EXCERPT = 200
"""An error shows so many characters of what was found."""


class Unfit(Exception):
    """What was found is no value of the type that was wanted; `at` leads to it from the column."""

    def __init__(self, found: str, wanted: object, at: str = ""):
        super().__init__(found, wanted, at)
        self.found, self.wanted, self.at = found, str(wanted), at

    def within(self, step: str) -> Unfit:
        """The same, seen from one level further out."""
        return Unfit(self.found, self.wanted, step + self.at)

    def said(self, where: str, *, private: bool = False) -> str:
        """The error of a value: where, what was found, what was wanted; `private`, without what was found."""
        if private:
            return f"{where}: found {WITHHELD}, wanted {self.wanted}"
        return f"{where}{self.at}: found {self.found or 'an empty text'}, wanted {self.wanted}"


def excerpt(found: bytes | str) -> str:
    """The first characters of what was found, as text that any database holds."""
    if isinstance(found, bytes):
        found = found[: EXCERPT * 4 + 4].decode(errors="replace")
    characters = (" " if c in "\t\r\n" else c if c.isprintable() else f"\\u{ord(c):04x}" for c in found[: EXCERPT + 1])
    shown = "".join(characters)
    return shown if len(shown) <= EXCERPT else shown[:EXCERPT] + "…"
