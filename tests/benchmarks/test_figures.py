"""The arithmetic of the benchmark table."""

import pytest

from tests.benchmarks.figures import Row, at_least_ratio, at_most, percentile, shown


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_a_demand_on_the_value_is_met_at_its_limit() -> None:
    assert [Row("", value, "ms", demand=at_most(100)).met for value in (99.9, 100, 100.1)] == [True, True, False]


def test_a_demand_on_the_ratio_compares_with_the_bare_number() -> None:
    assert [Row("", value, "/s", 100, at_least_ratio(0.5)).met for value in (49, 50)] == [False, True]


def test_a_row_shows_every_number_with_its_unit() -> None:
    row = Row("jobs", 61_234.5, "/s", 250_000, at_least_ratio(0.2))
    assert row.cells() == ("jobs", "61,234/s", "250,000/s", "0.24", "ratio at least 0.2", "met")


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(0.123, "ms", "0.12 ms"), (12.34, "ms", "12.3 ms"), (4, "", "4"), (1_000_000, "MB", "1,000,000 MB")],
)
def test_a_number_is_shown_with_three_digits(value: float, unit: str, expected: str) -> None:
    assert shown(value, unit) == expected
