"""The record of `make test-deploy`: a table of checks and results in docs/internals/deployment-record.md."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.processes import ROOT

FILE = ROOT / "docs/internals/deployment-record.md"
BEGIN, END = "<!-- record: begin -->\n", "<!-- record: end -->\n"
RAN_ON = pytest.StashKey[list[str]]()
"""What tests ran on, as their fixtures say it."""


class Record:
    """Listens to a run, and writes the table at its end."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._titles: dict[str, str] = {}
        self._results: dict[str, tuple[str, float]] = {}
        self._of = _commit()  # now, for the checkout may go on while the tests run

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take what each test does from its docstring."""
        for item in session.items:
            if isinstance(item, pytest.Function):
                self._titles[item.nodeid] = (item.function.__doc__ or item.name).strip().splitlines()[0].rstrip(".")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the result: the worst of a test's phases, and how long all of them took."""
        known, took_s = self._results.get(report.nodeid, ("passed", 0.0))
        self._results[report.nodeid] = (
            known if report.outcome == "passed" else report.outcome,
            took_s + report.duration,
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the table. A run without tests keeps the last one."""
        if any(outcome != "skipped" for outcome, _ in self._results.values()):
            whole = self._file.read_text(encoding="utf-8")
            before, _, rest = whole.partition(BEGIN)
            _, _, after = rest.partition(END)
            ran_on = session.config.stash.get(RAN_ON, [])
            self._file.write_text(before + BEGIN + self._table(ran_on) + END + after, encoding="utf-8")

    def _table(self, ran_on: list[str]) -> str:
        today = datetime.now(UTC).date().isoformat()
        on = "; ".join([f"Linux {platform.release().partition('-')[0]}, {os.cpu_count()} cores", *ran_on])
        head = "| what | result | seconds, preparations included |"
        lines = [f"{today}, {self._of}on {on}.", "", head, "|---|---|---|"]
        lines += [
            f"| {self._titles[node]} | {result} | {took_s:.0f} |" for node, (result, took_s) in self._results.items()
        ]
        return "\n".join(lines) + "\n"


def _commit() -> str:
    """Return which commit was run, and that it was changed; nothing where this is no clone."""
    words = ("git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty= with changes", "--abbrev=10")
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"commit {done.stdout.strip()}, "
