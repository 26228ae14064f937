"""Prints its state at the start, and ends as its input asks, for tests of supervisors."""

# ruff: noqa: T201 - telling is what it is for

import atexit
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

SETTINGS = ("REAPER_", "REDIS_URL")
AT_START = sorted(name for name in sys.modules if name.partition(".")[0] == "tests")


def start_one_and_wait() -> None:
    """Start a program that waits, tell its process ID, and wait as well."""
    from tests.support.processes import ROOT, Processes

    with tempfile.TemporaryDirectory() as folder:
        from tests.support.nursery import Nursery

        child = Processes(Path(folder), Nursery(ROOT)).python("-m", __name__, "waits")
        print("started", child.pid)
        signal.pause()


def main(what: str, *words: str) -> None:
    """Do ``what``."""
    match what:
        case "itself":
            settings = sorted(
                f"{name}={value}" for name, value in os.environ.items() if name.startswith(("REAPER_", "REDIS_URL"))
            )
            print("words", list(words))
            print("settings", settings)
            print("folder", Path.cwd())
            print("leads its session" if os.getsid(0) == os.getpid() else "follows")
            print("parent", os.getppid())
            print("main" if sys.modules["__main__"].main is main else "not main")
        case "modules":
            for module in ("redis", "pydantic", "workers.worker"):
                print(module, module in sys.modules)
            print("tests", AT_START)
        case "random":
            print(random.random())
        case "waits":
            signal.pause()
        case "exits":
            sys.exit(3)
        case "exits late":
            atexit.register(print, "late")
            raise SystemExit(4)
        case "raises":
            raise RuntimeError("as told")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
