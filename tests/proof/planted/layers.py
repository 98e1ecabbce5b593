"""The layers of tests that are asked, each on a copy: whether it passes, and if not, what has failed."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from tests.proof.planted.checkout import Copy

SCHEDULES = 300
"""Enough for every mistake that schedules find at all, as the planted ones show."""
SECONDS = 900
"""What has not ended by then is caught too: nothing of it goes on for ever in the code as it is."""
_LEDGER = (
    "begin claims commit refused_commits applied refusals gates moves deadlines late_tries".split()
    + "replay repartitioned doubles revisions losses schema stopped unknown_outcomes verify".split()
    + "other_code due drop restored folds revised_keys release release_checks several_topics".split(),
    "tests/ledger/test_{}.py",
)
_OF_SPARK = "slice sessions transforms topic_faults failures".split()
NO_END = f"no end within {SECONDS} s"
_AS_SPARK_READS = "spark/test_source.py::TestColumnar::test_it_is_as_spark_reads_it"
_OF_CODE = "unit/test_code.py"
_SPARK = ([_OF_CODE, "kafka/test_kafka.py", *map("spark/test_{}.py".format, _OF_SPARK), _AS_SPARK_READS], "tests/{}")


@dataclass(frozen=True)
class Answer:
    """What failed first, in a line; None if nothing did."""

    caught_by: str | None
    seconds: float


def ask(copy: Copy, layer: str, seed: int) -> Answer:
    """Run a layer of tests on the copy, until something fails; schedules are drawn by the seed."""
    started = time.monotonic()
    if layer == "schedules":
        caught = by_schedules(copy, seed, "--schedules", str(SCHEDULES))
    else:
        names, where = LAYERS[layer]
        caught = by_tests(copy, *map(where.format, names))
    return Answer(caught, round(time.monotonic() - started, 1))


LAYERS = {"schedules": None, "ledger": _LEDGER, "spark": _SPARK}


def by_schedules(copy: Copy, seed: int, *many: str) -> str | None:
    """What has failed in so many schedules, the same ones for each seed; None if nothing has."""
    done = copy.run("-m", "tests.proof.simulate", *many, "--seed", str(seed), "--unshrunk", seconds=SECONDS)
    if done.returncode == 0:
        return None
    if done.returncode is None:
        return NO_END
    # An assertion that has no words of its own is told by its line.
    errors = re.findall(r"^(?:(?:\w+\.)*[A-Z]\w+: | +(?=assert ))(.*)$", done.stdout + done.stderr, re.MULTILINE)
    return errors[-1][:160] if errors else (done.stdout + done.stderr).strip().splitlines()[-1]


def by_tests(copy: Copy, *which: str) -> str | None:
    """The first of these tests that has failed; None if none has."""
    done = copy.run("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *which, seconds=SECONDS)
    if done.returncode == 0:
        return None
    if done.returncode is None:
        return NO_END
    failed = re.search(r"^(?:FAILED|ERROR) \S+::(\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else (done.stdout + done.stderr).strip().splitlines()[-1]
