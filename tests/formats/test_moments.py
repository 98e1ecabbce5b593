"""Moments as Java, Python, Go, JavaScript and PostgreSQL write them, and numbers since 1970."""

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.formats.json_decoder import JsonDecoder
from ratchet.spec.columns import parse_columns
from ratchet.values.moments import moment

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AT = datetime(2024, 5, 1, 8, 0, tzinfo=UTC)
WRITTEN = {
    # Java: LocalDateTime, OffsetDateTime, ZonedDateTime, Instant.
    "2024-05-01T08:00": AT,
    "2024-05-01T08:00Z": AT,
    "2024-05-01T10:00+02:00": AT,
    "2024-05-01T10:00+02:00[Europe/Paris]": AT,
    "2024-05-01T08:00Z[UTC]": AT,
    "2024-05-01T08:00:00.120Z": AT + timedelta(milliseconds=120),
    "2024-05-01T08:00:00.123456789Z": AT + timedelta(microseconds=123456),
    # Python: isoformat, str, strftime("%z").
    "2024-05-01T10:00:00+02:00": AT,
    "2024-05-01 08:00:00.000120+00:00": AT + timedelta(microseconds=120),
    "2024-05-01T10:00:00+0200": AT,
    "1890-01-01T00:53:28+00:53:28": datetime(1890, 1, 1, tzinfo=UTC),
    # Go: RFC3339, RFC3339Nano.
    "2024-05-01T10:00:00.1234+02:00": AT + timedelta(microseconds=123400),
    # JavaScript: toISOString.
    "2024-05-01T08:00:00.000Z": AT,
    # PostgreSQL: timestamp, timestamptz, to_json.
    "2024-05-01 08:00:00": AT,
    "2024-05-01 10:00:00+02": AT,
    "2024-05-01 13:30:00.5+05:30": AT + timedelta(milliseconds=500),
    "1890-01-01 00:53:28+00:53:28": datetime(1890, 1, 1, tzinfo=UTC),
    "0001-01-01T00:00:00Z": datetime(1, 1, 1, tzinfo=UTC),
    "9999-12-31T23:59:59.999999Z": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
}


def read(columns: str, *values: str) -> list:
    decoded = JsonDecoder(parse_columns(columns)).decode(
        pa.array([b'{"t": %s}' % v.encode() for v in values], pa.binary())
    )
    assert decoded.errors.null_count == len(values), decoded.errors.to_pylist()
    return decoded.columns.column("t").to_pylist()


@pytest.mark.parametrize(("text", "at"), WRITTEN.items())
def test_every_form_that_others_write(text, at):
    assert EPOCH + timedelta(microseconds=moment(text)[0]) == at
    assert read("t timestamp", f'"{text}"') == [at]


def test_all_forms_beside_each_other():
    assert read("t timestamp", *(f'"{text}"' for text in WRITTEN)) == list(WRITTEN.values())


@given(st.datetimes(timezones=st.none() | st.integers(-1079, 1079).map(lambda m: timezone(timedelta(minutes=m)))))
def test_whatever_python_writes_is_read_back(at):
    exact = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    try:
        exact = exact.astimezone(UTC)
    except OverflowError:
        return
    for text in (at.isoformat(), str(at), at.isoformat(timespec="microseconds")):
        assert read("t timestamp", f'"{text}"') == [exact]


@pytest.mark.parametrize(
    ("unit", "number", "at"),
    [
        ("seconds", "1714550400", AT),
        ("seconds", "1714550400.25", AT + timedelta(milliseconds=250)),
        ("seconds", "-1", EPOCH - timedelta(seconds=1)),
        ("millis", "1714550400000", AT),
        ("millis", "1.7145504e12", AT),
        ("micros", "1714550400000001", AT + timedelta(microseconds=1)),
        ("nanos", "1714550400000001999", AT + timedelta(microseconds=1)),
        ("nanos", "-1", EPOCH - timedelta(microseconds=1)),
        ("seconds", "-62135596800", datetime(1, 1, 1, tzinfo=UTC)),
        ("millis", "253402300799999", datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
    ],
)
def test_numbers_since_1970(unit, number, at):
    assert read(f"t timestamp({unit})", number) == [at]
    assert read(f"t timestamp({unit})", number, number) == [at, at]


@pytest.mark.parametrize("number", ["253402300800", "-62135596801", "1e99", '"1714550400"', "true", "1e999999999"])
def test_what_is_no_number_of_seconds_is_refused(number):
    decoded = JsonDecoder(parse_columns("t timestamp(seconds)")).decode(pa.array([b'{"t": %s}' % number.encode()]))
    assert decoded.errors[0].as_py().startswith("column t: found ")
