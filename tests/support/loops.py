"""Lets a test choose the event loop of a process: uvloop is used where it can be imported."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.tiers import in_matrix

LOOPS = ("uvloop", "asyncio")


def on_a_loop(cases: Iterable[Any]) -> list[Any]:
    """Return ``(case, loop)`` for each case, with the two loops in turn. In the matrix, each case runs on both."""
    pairs = list[Any]()
    for number, case in enumerate(cases):
        chosen, other = LOOPS[number % 2], LOOPS[(number + 1) % 2]
        pairs += [(case, chosen), in_matrix(case, other)]
    return pairs


def loop_environment(loop: str, folder: Path) -> dict[str, str]:
    """Return the environment in which a program uses ``loop``: ``asyncio`` or ``uvloop``. Writes to ``folder``."""
    if loop == "uvloop":
        return {}
    hidden = folder / "without-uvloop"
    hidden.mkdir(exist_ok=True)
    (hidden / "uvloop.py").write_text("raise ImportError('hidden by a test')\n")
    return {"PYTHONPATH": str(hidden)}
