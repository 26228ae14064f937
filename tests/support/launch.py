"""Starts child processes that cannot outlive us, not even where a test session is ended by kill -9."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from reaper.drill.launch import tied_to_us


def launch(
    argv: Sequence[str], *, output: IO[bytes], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``argv`` without stdin, in a session of its own, stdout and stderr into ``output``."""
    return subprocess.Popen(
        tied_to_us(argv),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=dict(env) if env is not None else None,
        start_new_session=True,
    )
