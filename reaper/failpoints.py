"""Places where a test or a drill may stop, kill or fail this process. None is active by default.

A failpoint is a name in the code. Start the process with ``REAPER_FAILPOINTS=<directory>``. A file with the name of a
failpoint in that directory arms it. The first process that reaches the failpoint renames the file to
``<name>.hit.<pid>``, which is atomic, and does one of these things.

- ``stop`` sends SIGSTOP to itself. A SIGCONT continues it.
- ``kill`` sends SIGKILL to itself.
- ``raise`` raises ConnectionError, like a lost connection.

The names are ``lease.before_take``, ``lease.after_take``, ``tick.before``, ``scan.before_page``,
``recover.before_write``, ``recover.after_write`` and ``schedule.before_write``.
"""

import os
import signal
from pathlib import Path

ENVIRONMENT_VARIABLE = "REAPER_FAILPOINTS"

_DIRECTORY = os.environ.get(ENVIRONMENT_VARIABLE)


def failpoint(name: str) -> None:
    """Do the armed action, if there is one. Raises ConnectionError (``raise``), or ValueError for an unknown action."""
    if _DIRECTORY:
        _pass(Path(_DIRECTORY), name)


def arm(directory: Path, name: str, action: str) -> None:
    """Arm failpoint ``name`` for the first process that comes by. ``action`` is stop, kill or raise."""
    for earlier in directory.glob(f"{name}.hit.*"):
        earlier.unlink()
    draft = directory / f"{name}.draft"
    draft.write_text(action, encoding="ascii")
    draft.rename(directory / name)  # it appears whole


def disarm(directory: Path, name: str) -> None:
    """Disarm the failpoint if no process has claimed it."""
    (directory / name).unlink(missing_ok=True)


def is_armed(directory: Path, name: str) -> bool:
    """Return whether failpoint ``name`` is armed and no process has reached it."""
    return (directory / name).exists()


def claimed_by(directory: Path, name: str) -> int | None:
    """Return the process ID of the process that reached failpoint ``name`` while it was armed."""
    return next((int(hit.suffix[1:]) for hit in directory.glob(f"{name}.hit.*")), None)


def _pass(directory: Path, name: str) -> None:
    claim = directory / f"{name}.hit.{os.getpid()}"
    try:
        (directory / name).rename(claim)
    except FileNotFoundError:
        return
    match claim.read_text(encoding="ascii").strip():
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ConnectionError(f"failpoint {name}")
        case action:
            raise ValueError(f"failpoint {name} cannot be armed with {action!r}. Write stop, kill or raise.")
