"""Lets a test choose the event loop of a process: uvloop is used where it can be imported."""

from pathlib import Path


def loop_environment(loop: str, folder: Path) -> dict[str, str]:
    """Return the environment in which a program uses ``loop``: ``asyncio`` or ``uvloop``. Writes to ``folder``."""
    if loop == "uvloop":
        return {}
    hidden = folder / "without-uvloop"
    hidden.mkdir(exist_ok=True)
    (hidden / "uvloop.py").write_text("raise ImportError('hidden by a test')\n")
    return {"PYTHONPATH": str(hidden)}
