"""Durations and rates have units, in settings as well as in options."""

from datetime import timedelta

import click
import pytest

from reaper.settings import ReaperSettings
from workers.runtime.options import DurationType
from workers.runtime.quantities import seconds_in, written
from workers.runtime.settings import load_settings


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("30", 30), ("1.5s", 1.5), (" 500ms ", 0.5), ("5m", 300), ("24 h", 86_400), ("30d", 2_592_000), ("-1", -1)],
)
def test_a_duration_is_a_number_with_a_unit(typed: str, seconds: float) -> None:
    assert seconds_in(typed) == seconds


@pytest.mark.parametrize("typed", ["", "s", "soon", "5x", "nan", "inf", "1h30m", "1,5s"])
def test_other_text_is_no_duration(typed: str) -> None:
    assert seconds_in(typed) is None
    with pytest.raises(click.BadParameter, match="is not a duration, such as 30s, 5m or 24h"):
        DurationType().convert(typed, None, None)


@pytest.mark.parametrize(("seconds", "text"), [(30, "30s"), (90, "90s"), (300, "5m"), (86_400, "1d"), (0.5, "0.5s")])
def test_a_duration_is_written_so_that_it_can_be_read(seconds: float, text: str) -> None:
    assert written(timedelta(seconds=seconds)) == text
    assert seconds_in(text) == seconds


def test_settings_read_units() -> None:
    settings = load_settings(ReaperSettings, flags={"visibility_timeout": "5m", "lease_ttl": "0.5"})
    assert (settings.visibility_timeout, settings.lease_ttl) == (timedelta(minutes=5), timedelta(seconds=0.5))
