"""The output during a drill fits a terminal of eighty columns."""

from pathlib import Path

import pytest

from reaper.drill.cli import _next_steps
from reaper.drill.live import COLUMNS, fitted


def test_a_line_that_is_too_long_goes_on_below_itself() -> None:
    line = "    9.5 s  * kill -9 of worker w2-1 with 10 jobs in flight, so that there is something to recover"
    first, second = fitted([line])
    assert len(first) <= COLUMNS
    assert first + " " + second.strip() == line
    assert second.startswith("      ")


def test_what_fits_stays_as_it_is_with_its_columns() -> None:
    table = ["  enqueued                  701", "", "  stuck                     0"]
    assert fitted(table) == table


@pytest.mark.parametrize("path", ["", "bin"])
def test_it_ends_with_what_to_do_next_in_lines_that_fit_and_can_be_typed(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/reaper").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "")
    steps = _next_steps(".venv/bin/reaper")
    assert steps[0].startswith(f"next: {'reaper' if path else '.venv/bin/reaper'} drill --help   ")
    assert fitted(steps) == steps
