"""The failure drill: real processes, a real Redis, real faults, and a ledger in which every job is accounted for.

Read in this order: `drill` and `act` (what is played), `cast` (by whom), `faults` and `injection` (what is broken, and
how), `evidence` and `ledger` (what is known afterwards, and what follows from it). The drill starts workers and reapers
as processes, as systemd would, and imports neither's loop: it judges them by what they leave in Redis and by what the
jobs wrote down.
"""

from pathlib import Path


def bare_worker_path() -> Path:
    """Return the program of the bare worker, which is started as a file and never imported."""
    return Path(__file__).with_name("bare_worker.py")


def published_worker_path() -> Path:
    """Return the program of the published worker, which is started as a file and never imported."""
    return Path(__file__).with_name("published_worker.py")
