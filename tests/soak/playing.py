"""Plays a drill of the soak, and judges its report."""

from pathlib import Path
from typing import Any

from tests.drill.playing import read
from tests.support.processes import Processes


async def played(processes: Processes, folder: Path, *options: str) -> dict[str, Any]:
    """Play a drill that has to end as promised; return its report."""
    report = folder / "report.json"
    drill = processes.python("-m", "tests.soak", *options, "--output", str(report), name="drill")
    assert await drill.wait() == 0, drill.output
    told: dict[str, Any] = read(report)
    assert (told["balanced"], told["objections"]) == (True, [])
    if told["replay"]:
        assert told["replay"] in drill.output
    return told
