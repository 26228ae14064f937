"""A plugin of pytest that writes the first failed test and its message into a file that the environment names."""

import os
from pathlib import Path

import pytest

VARIABLE = "MUTANTS_FIRST_FAILURE"


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    place = os.environ.get(VARIABLE)
    if report.failed and place and not Path(place).exists():
        said = report.longreprtext.strip().splitlines()
        errors = [line.strip("E |+-") for line in said if line.startswith("E ")]
        telling = [line for line in errors if line.startswith("assert") or "Error" in line]
        first = (telling or errors or said or [""])[0]
        Path(place).write_text(f"{report.nodeid}\n{first}", encoding="utf-8", errors="replace")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Hear of a test."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Hear of a file that cannot be read."""
    _note(report)
