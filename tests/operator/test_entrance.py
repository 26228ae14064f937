"""Ctrl-C while a program is still being imported, and signals after its work."""

import signal
import subprocess
import sys

import pytest

from tests.operator.every import ASKING, LEAVES, STARTING
from tests.support.processes import ROOT
from workers.runtime.children import received
from workers.runtime.options import INTERRUPTED_EXIT

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

SENDING = """
import importlib.abc, os, sys
class Sending(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *others):
        if name == "click":
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Sending())
sys.argv[0] = {program!r}
from {package}.__main__ import main
main()
"""
"""A program that is sent a signal in the midst of its imports."""


def _code(name: str, number: signal.Signals) -> str:
    program = name.split()[0]
    return SENDING.format(number=int(number), program=program, package={"worker": "workers"}.get(program, program))


def _begun(name: str, number: signal.Signals) -> tuple[int, str]:
    words = [*name.split()[1:], *(ASKING | STARTING).get(name, ())]
    begun = [sys.executable, "-c", _code(name, number), *words]
    done = subprocess.run(begun, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name, _ in LEAVES])
def test_ctrl_c_while_it_is_imported_ends_it_without_a_word(name: str) -> None:
    assert _begun(name, signal.SIGINT) == (INTERRUPTED_EXIT, "")


async def test_after_a_service_signals_do_what_they_did_before() -> None:
    """Else SIGTERM during a worker's last exports kills it, and a program of a user's loses its handlers."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with received(signal.SIGTERM, signal.SIGHUP):
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
