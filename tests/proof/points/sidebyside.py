"""Calls side by side that do not outlive an interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


def side_by_side(call: Callable[[A], R], arguments: Iterable[A]) -> list[R]:
    """What the calls return, in order, each made in a thread of its own; the first error is raised when all have ended.

    Unlike those of a pool, the threads end with their process: Ctrl-C need not wait for a pipeline to finish.
    """
    given = list(arguments)
    returned: dict[int, R] = {}
    raised: list[BaseException] = []

    def work(number: int) -> None:
        try:
            returned[number] = call(given[number])
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return [returned[number] for number in range(len(given))]
