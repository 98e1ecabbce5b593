"""Which topics a spec means: those that it names, or those whose names match its pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass

MARKS = "ratchet_marks"
"""The topic in which it is noted what each pipeline has sent to each topic; no pattern matches it."""


@dataclass(frozen=True)
class Subscription:
    """Names of topics, or a regular expression that matches whole names."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    compacted: bool = False
    """Whether the topics are said to be compacted."""

    def wants(self, name: str) -> bool:
        """Whether a topic of this name is meant; no pattern means a topic of Kafka's own, or that of the marks."""
        if self.pattern is None:
            return name in self.names
        return not name.startswith("__") and name != MARKS and re.fullmatch(self.pattern, name) is not None

    @property
    def title(self) -> str:
        """How people read it: a name, names, or the pattern."""
        return ", ".join(self.names) or str(self.pattern)
