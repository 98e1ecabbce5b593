"""A hook of mkdocs: a code block's file, which stands behind its language, becomes the block's title.

Without it the site takes such a line for text, and what follows for code.
"""

import re

FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
ELSEWHERE = "elsewhere"
"""Marks a block that no test runs; readers need not know."""


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page with fences as the site's Markdown has them."""
    return FENCE.sub(lambda said: f"```{said[1]}" + ("" if said[2] == ELSEWHERE else f' title="{said[2]}"'), markdown)
