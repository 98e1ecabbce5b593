"""A person's own code in a traceback: the files and lines at which an error was raised, which hold no value."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

Frame = tuple[str, int, str]
"""(file, line, function)."""
_LIBRARY = Path(__file__).parents[1]
_INSTALLED = re.compile(
    r".*(?:[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]|\.zip[/\\]|[/\\]python[/\\](?=pyspark[/\\]))"
)
"""Up to where packages begin that somebody has installed, Spark's own copy of PySpark among them."""


def package_of(transform: str) -> str:
    """The top-level package of a transform, `jobs` of `jobs.payments:transform`."""
    return transform.partition(":")[0].partition(".")[0]


def frames_of(error: BaseException) -> list[Frame]:
    """The frames of an error's traceback, the innermost last."""
    walked = traceback.walk_tb(error.__traceback__)
    return [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]


def own_frames(frames: list[Frame], package: str = "") -> list[Frame]:
    """Those of a person's own code; `package` is theirs wherever it is installed."""
    return [frame for frame in frames if not is_of_library(frame[0]) and is_own(frame[0], package)]


def is_own(file: str, package: str = "") -> bool:
    """Whether a file is part of what people work on, this library among it, and of no package that is installed."""
    installed = _INSTALLED.match(file)
    # Compiled code has names that are no files.
    if installed is None:
        return Path(file).is_absolute()
    return Path(file[installed.end() :]).parts[0].removesuffix(".py") == package


def is_of_library(file: str) -> bool:
    """Whether a file is one of ratchet's own, whose errors are made without values where that is asked for."""
    package, _, path = file.rpartition("/ratchet/")
    return bool(package) and (_LIBRARY / path).is_file()


def place(frames: list[Frame], package: str) -> str:
    """` (jobs/payments.py, line 17)`, of the innermost frame of a person's own; nothing where there is none."""
    for file, line, _ in own_frames(frames, package)[-1:]:
        return f" ({shortened(file, package)}, line {line})"
    return ""


def shortened(file: str, package: str = "") -> str:
    """A file from the package on, as it is imported on each machine; of another one, its folder and its name."""
    *folders, name = Path(file).parts
    if name == f"{package}.py":
        return name
    kept = folders[::-1].index(package) + 1 if package in folders else 1
    return "/".join([*folders[-kept:], name])


def listed(frames: list[Frame], package: str) -> str:
    """The frames of a person's own in lines, as Python has them, the innermost last; "" where there is none."""
    lines = [
        f'  File "{shortened(file, package)}", line {line}, in {function}'
        for file, line, function in own_frames(frames, package)
    ]
    # What calls itself, or what Spark says twice, is told once.
    return "\n".join(dict.fromkeys(lines))
