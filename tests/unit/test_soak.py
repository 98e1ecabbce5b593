"""What the soak calls flat."""

import pytest

from tests.proof.soak.gauges import COUNT, MEMORY, Gauge, row_of


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (MEMORY, [100.0, *range(200, 600, 20), *[600.0] * 40]),  # It warms up.
        (MEMORY, [600.0, 610.0, 590.0] * 20),
        (COUNT, [8.0, 3.0] * 30),
        (COUNT, [20.0] * 50 + [90.0] + [20.0] * 9),  # A peak is no growth.
        (row_of(100_000), [500.0 - step for step in range(60)]),
        (row_of(400), [300.0] * 40 + [345.0] * 20),  # Two pages of a small table.
    ],
)
def test_what_settles_is_flat(kind, values):
    assert Gauge("it", kind, values).is_flat


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (MEMORY, [500.0 + 4 * step for step in range(60)]),
        (COUNT, [20.0 + step / 2 for step in range(60)]),
        (row_of(100_000), [100.0 + step for step in range(60)]),
        (row_of(400), [300.0] * 40 + [700.0] * 20),
    ],
)
def test_what_grows_to_the_end_is_not(kind, values):
    assert not Gauge("it", kind, values).is_flat


def test_a_series_is_drawn_from_nothing_to_its_most():
    assert Gauge("it", COUNT, [0.0, 7.0, 3.5]).drawn(10) == "▁█▅"
    assert Gauge("it", COUNT, [float(value) for value in range(100)]).drawn(4) == "▃▄▆█"
    assert Gauge("it", COUNT, [0.0, 0.0]).drawn(2) == "▁▁"
