"""What has no place in a statement over records, wherever in it: functions, windows, queries within it."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.errors import SpecError
from ratchet.spec.functions import CLOCK, FEWEST, MAKES_TIME, NOW, instead_of
from ratchet.spec.tokens import Token, place

NO_QUERY = "a statement reads the records once and nothing else; to look something up, use a function over DataFrames"
_NO_WINDOW = "a window looks at other records, and which ones are in a slice is nobody's promise; leave it to a sink"
_AGAIN = {
    "aes_encrypt": "without an initialization vector of the record's it gives another value in every try",
    "unix_timestamp": CLOCK,
}


def refused(text: str, token: Token, why: str) -> SpecError:
    """The error about a token: its place, its text, and why it is refused or what to do instead."""
    return SpecError(f"{place(text, token.start)}: {token.text}: {why}")


def refuse(text: str, tokens: Sequence[Token]) -> None:
    """Raises SpecError at the first thing that has no place in a statement."""
    for i, token in enumerate(tokens):
        before, following = tokens[i - 1], tokens[i + 1 : i + 3]
        is_call = bool(following) and following[0].text == "("
        name = (token.name or "").lower() if is_call else ""
        if token.keyword == "OVER" and before.text == ")":
            raise refused(text, token, _NO_WINDOW)
        if token.text == "(" and _is_query(following):
            raise refused(text, following[0], NO_QUERY)
        if token.text == "{" and before.text == "$":
            raise refused(text, before, "what it stands for is a setting of Spark's session; write the value")
        if token.text == ";":
            raise refused(text, token, "a sink has one statement, and this is the end of it")
        if name == "identifier":
            raise refused(text, token, "write the name itself")
        why = instead_of(name)
        if why is None and name in FEWEST and _arguments(tokens[i + 1 :]) < FEWEST[name]:
            why = _AGAIN[name]
        if why is None and token.kind == "string" and _is_now(tokens, i):
            why = CLOCK
        if why is not None:
            raise refused(text, token, why)


def _is_query(following: Sequence[Token]) -> bool:
    """Whether a query begins with these tokens, behind a parenthesis that opens."""
    first, second = following[0].keyword, following[-1]
    # Columns may be called `table` and `values`.
    goes_on = second.kind != "other" or second.text == "("
    return first in ("SELECT", "WITH", "FROM") or (first in ("TABLE", "VALUES") and goes_on)


def _arguments(behind: Sequence[Token]) -> int:
    """How many arguments a call has, by the tokens from its parenthesis on."""
    if behind[1].text == ")":
        return 0
    inner = behind[0].depth + 1
    count = 1
    for token in behind[1:]:
        if token.text == ")" and token.depth < inner:
            break
        count += token.text == "," and token.depth == inner
    return count


def _is_now(tokens: Sequence[Token], number: int) -> bool:
    """Whether a string is a word for a time of Spark's own, and is cast to one."""
    said = tokens[number].text.lstrip("rR").strip("'\" ").lower().split(" ")[0]
    if said not in NOW:
        return False
    words = [token.text.lower() for token in tokens[max(0, number - 2) : number]]
    is_literal = bool(words) and words[-1] in MAKES_TIME
    is_cast = len(words) == 2 and words[1] == "(" and words[0] in MAKES_TIME
    behind = [token.text for token in tokens[number + 1 : number + 3]]
    return is_literal or is_cast or behind == [":", ":"]
