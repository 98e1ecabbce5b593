"""An error is told with the line of a person's own code, by a short name that is the same on each machine."""

import pytest

from ratchet import Append, Json, Pipeline, Topic
from ratchet.errors import Refused, TransformError
from ratchet.transforms.result import raised
from ratchet.values import own_code
from ratchet.values.own_code import frames_of, is_of_library, listed, package_of, place, shortened

THEIRS = "/home/me/ratchet/jobs/payments.py"
PANDAS = "/srv/.venv/lib/python3.11/site-packages/pandas/core/frame.py"
SHIPPED = "/tmp/spark-1/userFiles-2/code.zip/jobs/rules/rates.py"
SPARKS = "/opt/spark/python/pyspark/sql/udf.py"
OF_LIBRARY = str(own_code.__file__)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([THEIRS, OF_LIBRARY, PANDAS, "pyarrow/error.pxi", "<frozen runpy>"], " (jobs/payments.py, line 1)"),
        ([THEIRS, SHIPPED, SPARKS], " (jobs/rules/rates.py, line 2)"),
        (["/srv/lib/python3.11/site-packages/jobs/payments.py", PANDAS], " (jobs/payments.py, line 1)"),
        (["/srv/lib/python3.11/site-packages/jobs.py", SPARKS], " (jobs.py, line 1)"),
        (["/home/jobs/ratchet/jobs/a/b.py"], " (jobs/a/b.py, line 1)"),
        ([THEIRS, "/home/me/shared/money/rounding.py"], " (money/rounding.py, line 2)"),
        ([OF_LIBRARY, PANDAS, SPARKS], ""),
        ([], ""),
    ],
)
def test_the_innermost_line_of_a_persons_own_is_told(files, said):
    assert place([(file, line, "f") for line, file in enumerate(files, 1)], "jobs") == said


def test_all_lines_of_a_persons_own_are_listed_for_a_log():
    frames = [
        (OF_LIBRARY, 9, "run"),
        (THEIRS, 17, "transform"),
        (THEIRS, 17, "transform"),
        (PANDAS, 3, "apply"),
        (SHIPPED, 4, "rate"),
    ]
    assert listed(frames, "jobs").splitlines() == [
        '  File "jobs/payments.py", line 17, in transform',
        '  File "jobs/rules/rates.py", line 4, in rate',
    ]


def test_a_file_of_a_person_is_none_of_the_library_whatever_its_folder_is_called():
    assert is_of_library(own_code.__file__)
    assert is_of_library("/opt/spark/python/ratchet/spark/worker_lane.py")
    assert not is_of_library(THEIRS)
    assert not is_of_library("/home/me/ratchet/nothing.py")


def test_a_package_is_that_of_the_transform():
    assert package_of("jobs.payments:transform") == "jobs"
    assert shortened(THEIRS) == "jobs/payments.py"


@pytest.mark.parametrize("is_private", [False, True])
def test_what_a_transform_raises_has_its_line_and_of_a_private_pipeline_no_words(is_private):
    spec = Pipeline(
        name="p",
        source=Topic("t", value=Json("a int")),
        transform="tests.unit.test_own_code:transform",
        sinks=[Append("r", columns="a int")],
        private=is_private,
    )
    try:
        {}["GBP"]
    except KeyError as error:
        caught, line = error, frames_of(error)[-1][1]
    said = raised(spec, caught)
    assert type(said) is TransformError
    if is_private:
        assert str(said).endswith(f"transform raised KeyError at tests/unit/test_own_code.py:{line}")
    else:
        assert str(said).endswith(f"transform raised KeyError: 'GBP' (tests/unit/test_own_code.py, line {line})")
    refused = Refused("not yet")
    assert (raised(spec, refused) is refused) == (not is_private)
