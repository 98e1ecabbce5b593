"""Functions that numba compiles for stated types when their module is imported, or loads from where they are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compiled for this signature at once.

    Bounds are not checked: what reads bytes of others checks by hand, and says where they are broken.
    """

    def compile_(function: Callable[..., Any]) -> Any:
        given: dict[str, Any] = {"nogil": True, "boundscheck": False, **options}
        try:
            return numba.njit(signature, cache=True, **given)(function)
        except (RuntimeError, OSError):
            # There is nowhere to keep it: every process compiles for itself, which takes a second or two.
            return numba.njit(signature, **given)(function)

    return compile_
