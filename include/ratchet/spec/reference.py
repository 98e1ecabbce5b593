"""References: how a spec names functions and objects of a person's own, which it does not import."""

from __future__ import annotations

import importlib
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from ratchet.errors import SpecError

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _named(given: object) -> object:
    """One name stands for a list of one."""
    for part in given if isinstance(given, list | tuple) else [given]:  # pyright: ignore[reportUnknownVariableType]: a list of anything
        if not isinstance(part, str):
            kind = type(part).__name__  # pyright: ignore[reportUnknownArgumentType]: any object has a class
            raise ValueError(
                f'it is a {kind}; name it by text, as in "alerts:page" for `page` of module `alerts`: jobs read the '
                "spec as well, without Airflow"
            )
    return (given,) if isinstance(given, str) else given  # pyright: ignore[reportUnknownVariableType]: a list of texts


def _well_formed(given: tuple[str, ...]) -> tuple[str, ...]:
    for reference in given:
        if not _REFERENCE.fullmatch(reference):
            raise ValueError(f'{reference!r} is not "module:name"')
    return given


References = Annotated[tuple[str, ...], BeforeValidator(_named), AfterValidator(_well_formed)]
"""Names of objects, `module:name`, one or a list; they are imported where they are used, by tasks and the DAG."""


def load(reference: str, field: str) -> Any:
    """What a reference in a field of a spec names; SpecError if it cannot be imported."""
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise SpecError(f"Pipeline.{field}: {reference!r} cannot be imported: {said}") from error
