"""What is said in place of values of records, where a spec keeps them out of logs, errors and the history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ratchet.errors import RatchetError
from ratchet.values.own_code import Frame, frames_of, is_own, own_frames, shortened

WITHHELD = "[private]"
"""What stands where a value would."""
_ABOUT = re.compile(r"(?:the value|the key)\b|(?:row \d+, )?(?:key )?column (\w+)")
_NAMES = ("schema_name", "table_name", "column_name", "datatype_name", "constraint_name")


def postgres_said(error: BaseException, *, private: bool) -> str:
    """PostgreSQL's words; or, since they quote values (`Key (iban)=(…) already exists`), what it names of its own."""
    if not private:
        return str(error).strip()
    state, diag = getattr(error, "sqlstate", None), getattr(error, "diag", None)
    names = [(of.removesuffix("_name"), getattr(diag, of, None)) for of in _NAMES]
    said = [f"{type(error).__name__} ({state})" if state else type(error).__name__]
    return ", ".join([*said, *(f"{of} {name}" for of, name in names if name)])


def named(error: BaseException, package: str = "") -> str:
    """The class of an error, and where it was raised: `KeyError at jobs/orders.py:12`; its own words are left out.

    `package` is a person's own wherever it is installed.
    """
    said = postgres_said(getattr(error, "orig", None) or error, private=True)
    return f"{said}{place_of(frames_of(error), package)}"


def place_of(frames: list[Frame], package: str = "") -> str:
    """Which of these frames, the innermost last, is to be looked at: a person's own code before any library."""
    own = [frame for frame in frames if is_own(frame[0], package)]
    for file, line, _ in (own_frames(frames, package) or own or frames)[-1:]:
        return f" at {shortened(file, package)}:{line}"
    return ""


def record_error(error: str, columns: Mapping[str, object], constant: tuple[str, ...]) -> str:
    """Why a record is a dead letter, without what was found: whatever a format says, only what it is about is kept.

    `columns` are the declared ones with their types, `constant` are errors that hold no value.
    """
    about = _ABOUT.match(error)
    if error in constant or about is None:
        return error if error in constant else f"the value: found {WITHHELD}"
    if about[1] is None:
        return f"{about[0]}: found {WITHHELD}"
    if about[1] not in columns:
        return f"the value: found {WITHHELD}"
    wanted = columns[about[1]]
    missing = [f"{about[0]}: found {nothing}, wanted {wanted} not null" for nothing in ("null", "nothing")]
    return error if error in missing else f"{about[0]}: found {WITHHELD}, wanted {wanted}"


@contextmanager
def kept_out(private: bool, *passing: type[Exception]) -> Iterator[None]:
    """The edge of what works for a private pipeline: no error leaves it with those that have led to it, whose words and
    tracebacks hold values; and of one that is not ratchet's own, nor one of `passing`, only its class and place do.
    """
    try:
        yield
    except (MemoryError, *passing):
        raise
    except RatchetError as error:
        if private:
            raise error from None
        raise
    except Exception as error:
        if private:
            raise RuntimeError(named(error)) from None
        raise
