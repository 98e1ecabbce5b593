"""A statement in Spark's SQL over the records of a topic, taken apart into what Spark is given of it.

    select item, … from records [[as] name] [lateral view [outer] generator(…) name [[as] column, …]]… [where …]

Each part is an expression, which Spark parses; a clause that would look at other records has no place here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ratchet.errors import SpecError
from ratchet.spec.functions import GENERATORS, NO_PARENTHESES, SUMS_BELONG_TO_SINKS, instead_of
from ratchet.spec.refusals import NO_QUERY, refuse, refused
from ratchet.spec.tokens import Token, place, tokens_of

RECORDS = "records"
"""What a statement calls the records, if not by the topic's name."""
MADE = ("_n", "_deleted")
"""The columns with an underscore that a statement may make; the others are the record's."""

_ORDER = "a table has no order of rows; leave it out"
_ALL_ROWS = "all records are taken, each by itself; leave it out, or select by where"
_CLAUSES = {
    **dict.fromkeys(("GROUP", "HAVING", "PIVOT"), SUMS_BELONG_TO_SINKS),
    **dict.fromkeys(("ORDER", "SORT", "CLUSTER", "DISTRIBUTE"), _ORDER),
    **dict.fromkeys(("LIMIT", "OFFSET", "TABLESAMPLE", "QUALIFY", "WINDOW"), _ALL_ROWS),
    **dict.fromkeys(
        ("UNION", "UNPIVOT"), "let a generator such as stack or explode make several rows of a record instead"
    ),
    **dict.fromkeys("INTERSECT EXCEPT MINUS JOIN INNER LEFT RIGHT FULL CROSS NATURAL SEMI ANTI".split(), NO_QUERY),
}
"""The word with which a clause begins: what to do instead."""
_GOES_ON = set(
    "ALL AND AS BETWEEN CASE DISTINCT DIV ELSE ESCAPE FROM ILIKE IN IS LIKE NOT OR REGEXP RLIKE SELECT THEN WHEN "
    "WHERE".split()
)
"""Behind these words something must follow, so it is neither an alias nor a clause."""


@dataclass(frozen=True)
class Statement:
    """What Spark is given of a statement: expressions, each behind as many lines and spaces as are before it in the
    statement, so that Spark names the places in them as they are there.
    """

    relation: str
    """What it reads, which must be the records."""
    alias: str
    generators: tuple[str, ...]
    """Of its lateral views: expressions that are put beside all columns, one after the other."""
    items: tuple[str, ...]
    """What it selects."""
    condition: str | None
    """What it selects by."""
    makes_rows: bool
    """Whether a generator makes several rows of a record."""
    made: frozenset[str]
    """Which of MADE it makes itself."""
    returns: frozenset[str] | None
    """The names of its columns in lower case, where all of them are known without Spark."""
    bare: tuple[tuple[str, str], ...]
    """(place, word) of words that are the clock or the session, unless a column has the name."""

    def misfit(self, topics: Sequence[str], columns: Sequence[str]) -> str | None:
        """Why it does not fit topics with these columns, in a line; None where it does."""
        if self.relation.lower() not in (RECORDS, *(topic.lower() for topic in topics if len(topics) == 1)):
            return f"it reads {self.relation!r}; write `from {RECORDS}`, which are those of the topic"
        known = {column.lower() for column in columns}
        for where, word in self.bare:
            if word.lower() not in known:
                return f"{where}: {word}: {instead_of(word.lower())}"
        return None


@lru_cache(maxsize=256)
def statement_of(text: str) -> Statement:
    """A statement, taken apart; SpecError, which begins with the place, says what has no place in one."""
    tokens = tokens_of(text)
    if tokens and tokens[-1].text == ";":
        tokens = tokens[:-1]
    if not tokens:
        raise SpecError("it is empty; write `select … from records`")
    if tokens[0].keyword != "SELECT":
        raise refused(text, tokens[0], "a statement is one `select … from records where …`")
    refuse(text, tokens)
    return _Parser(text, tokens).statement()


class _Parser:
    """Goes through a statement's tokens once, clause by clause."""

    def __init__(self, text: str, tokens: tuple[Token, ...]):
        self._text, self._tokens, self._at = text, tokens, 1
        self._views: list[str] = []
        """The names of lateral views."""

    def statement(self) -> Statement:
        """The whole of it."""
        items = self._items()
        relation = self._relation()
        alias = self._alias() or relation
        views: list[tuple[Sequence[Token], bool, list[str]]] = []
        while self._keyword() == "LATERAL":
            views.append(self._view())
        condition = self._condition()
        text = self._unqualified()
        names = [_names_of(self._text, item) for item in items]
        known = [name for name, _ in names]
        calls = [a.name for a, b in pairwise(self._tokens) if a.name and b.text == "("]
        return Statement(
            relation=relation,
            alias=alias,
            generators=tuple(_generator(text, *view) for view in views),
            items=tuple(_expression(text, item) for item in items),
            condition=_expression(text, condition) if condition else None,
            makes_rows=bool(views) or any(call.lower() in GENERATORS for call in calls),
            made=frozenset(name for _, made in names for name in made if name in MADE),
            returns=None if None in known else frozenset(name.lower() for each in known for name in each or ()),
            bare=tuple(self._bare({column.lower() for _, _, columns in views for column in columns})),
        )

    def _items(self) -> list[list[Token]]:
        if self._keyword() == "DISTINCT":
            raise self._wrong("it looks at other records; leave it out, and the last row of a key to an Upsert")
        self._at += self._keyword() == "ALL"
        items: list[list[Token]] = [[]]
        while not (self._keyword() == "FROM" and not self._here().depth):
            if self._at == len(self._tokens):
                raise SpecError("it reads nothing; write `from records`")
            if self._said() == "," and not self._here().depth:
                items.append([])
            else:
                items[-1].append(self._here())
            self._at += 1
        if not all(items):
            raise self._wrong("before it a column is missing, or a comma is too many")
        self._at += 1
        return items

    def _relation(self) -> str:
        if self._said() == "(":
            raise self._wrong(NO_QUERY)
        parts = [self._name()]
        # A topic's name may have dots.
        while self._said() == ".":
            self._at += 1
            parts.append(self._name())
        return ".".join(parts)

    def _alias(self) -> str | None:
        if self._keyword() == "AS":
            self._at += 1
            return self._name()
        return None if self._is_over() or self._here().name is None else self._name()

    def _view(self) -> tuple[Sequence[Token], bool, list[str]]:
        """(the generator's call, whether it is outer, its columns) of `lateral view …`."""
        self._at += 1
        if self._keyword() != "VIEW":
            raise self._wrong(NO_QUERY)
        self._at += 1
        is_outer = self._keyword() == "OUTER"
        self._at += is_outer
        start = self._at
        while self._at < len(self._tokens) and (self._said() != ")" or self._here().depth):
            self._at += 1
        self._at += 1
        call = self._tokens[start : self._at]
        if len(call) < 3 or call[0].name is None or call[1].text != "(":
            raise refused(self._text, self._tokens[start - 1], "a generator must follow, such as explode(items)")
        self._views.append(self._name().lower())
        columns = self._columns()
        if any(column.startswith("_") for column in columns):
            raise self._wrong("a lateral view's columns have names without an underscore; select pos as _n", -1)
        return call, is_outer, columns

    def _columns(self) -> list[str]:
        if self._keyword() == "AS":
            self._at += 1
        elif self._is_over():
            return []
        columns = [self._name()]
        while self._said() == ",":
            self._at += 1
            columns.append(self._name())
        return columns

    def _is_over(self) -> bool:
        """Whether what is read ends here, or another clause begins."""
        return self._at == len(self._tokens) or self._keyword() in {"WHERE", "LATERAL", *_CLAUSES}

    def _condition(self) -> Sequence[Token]:
        if self._at == len(self._tokens):
            return ()
        if self._keyword() != "WHERE":
            what = NO_QUERY if self._said() == "," else _CLAUSES.get(self._keyword())
            raise self._wrong(what or "behind the records only lateral view and where have a place")
        condition = self._tokens[self._at + 1 :]
        if not condition:
            raise self._wrong("the condition must follow")
        for before, token in pairwise(condition):
            if token.keyword in _CLAUSES and not token.depth and _is_value(before):
                raise refused(self._text, token, _CLAUSES[token.keyword])
        return condition

    def _unqualified(self) -> str:
        """The text with spaces in place of lateral views' names: beside the others their columns have none."""
        text = self._text
        for i, (alias, dot) in enumerate(pairwise(self._tokens)):
            is_first = i == 0 or self._tokens[i - 1].text != "."
            if dot.text != "." or not is_first or (alias.name or "").lower() not in self._views:
                continue
            if self._tokens[i + 2 : i + 3] and self._tokens[i + 2].text == "*":
                raise refused(text, alias, "name the columns of a lateral view one by one")
            text = text[: alias.start] + " " * (dot.end - alias.start) + text[dot.end :]
        return text

    def _bare(self, made: set[str]) -> Iterator[tuple[str, str]]:
        for i, token in enumerate(self._tokens):
            before, behind = self._tokens[i - 1], self._tokens[i + 1 : i + 2]
            is_word = token.keyword.lower() in NO_PARENTHESES - made
            if not is_word or before.text == "." or before.keyword == "AS" or _is_value(before):
                continue
            if not behind or behind[0].text not in ("(", "."):
                yield place(self._text, token.start), token.text

    def _here(self) -> Token:
        return self._tokens[self._at]

    def _said(self) -> str:
        return self._here().text if self._at < len(self._tokens) else ""

    def _keyword(self) -> str:
        return self._here().keyword if self._at < len(self._tokens) else ""

    def _name(self) -> str:
        if self._at >= len(self._tokens):
            raise refused(self._text, self._tokens[-1], "a name must follow")
        name = self._here().name
        if name is None:
            raise self._wrong("here a name must stand")
        self._at += 1
        return name

    def _wrong(self, why: str, ahead: int = 0) -> SpecError:
        return refused(self._text, self._tokens[min(self._at + ahead, len(self._tokens) - 1)], why)


def _expression(text: str, part: Sequence[Token]) -> str:
    """A part of the statement, behind as many lines and spaces as are before it."""
    start, end = part[0].start, part[-1].end
    line = text.rfind("\n", 0, start) + 1
    return "\n" * text.count("\n", 0, start) + " " * (start - line) + text[start:end]


def _generator(text: str, call: Sequence[Token], is_outer: bool, columns: Sequence[str]) -> str:
    said = _expression(text, call)
    if is_outer and call[0].text.lower() not in {"explode_outer", "posexplode_outer", "inline_outer"}:
        outer = f"{call[0].text}_outer"
        if outer.lower() not in GENERATORS:
            raise refused(text, call[0], "it has no outer form; leave outer out")
        # The places behind the name are Spark's to tell: its longer name takes some of the spaces.
        head, _, rest = said.partition(call[0].text)
        said = head.removesuffix(" " * len("_outer")) + outer + rest
    named = ", ".join(f"`{column.replace('`', '``')}`" for column in columns)
    return f"{said} as ({named})" if columns else said


def _names_of(text: str, item: Sequence[Token]) -> tuple[list[str] | None, list[str]]:
    """(the names of an item's columns, or None where only Spark knows them; those that it gives by alias)."""
    last, before = item[-1], item[-2] if len(item) > 1 else None
    made: list[str] = []
    known: list[str] | None = None
    if all(token.name for token in item[::2]) and all(token.text == "." for token in item[1::2]):
        known = [str(last.name)]
    elif before and before.keyword == "AS" and last.name and not last.depth:
        known = made = [last.name]
    elif last.text == ")" and (opens := _opens(item)) and item[opens - 1].keyword == "AS":
        known = made = [token.name for token in item[opens + 1 : -1] if token.name]
    elif last.name and last.name.startswith("_") and before and _is_value(before):
        made = [last.name]
    for name in made:
        if name.startswith("_") and name not in MADE:
            raise refused(
                text, last, f"{name} is the record's own, and goes along with its rows by itself; give another name"
            )
    return known, made


def _opens(item: Sequence[Token]) -> int:
    """The number of the parenthesis that the item's last one closes."""
    return max(i for i, token in enumerate(item) if token.text == "(" and token.depth == item[-1].depth)


def _is_value(token: Token) -> bool:
    """Whether a value ends with a token, so that a word behind it is an alias, or begins a clause."""
    return token.kind != "other" and token.keyword not in _GOES_ON or token.text in (")", "]")
