"""Signals while a program is still being imported, and after its work: they do what they do while it is at work."""

import signal
import subprocess
import sys

import pytest
from redis.asyncio import Redis

from tests.operator.every import ASKING, LEAVES, PAIR, STARTING
from tests.support.processes import ROOT, Processes
from tests.support.servers import RedisServer
from workers.runtime.entrance import INTERRUPTED_EXIT
from workers.runtime.signals import received

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

SERVICES = {"reaper run", "worker run", "reaper pipeline ingest"}
"""Commands that Ctrl-C is the way to end."""
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
    assert _begun(name, signal.SIGINT) == (0 if name in SERVICES else INTERRUPTED_EXIT, "")


@pytest.mark.parametrize("name", ["reaper status", *sorted(SERVICES)])
def test_a_service_that_is_told_to_end_before_it_has_begun_has_ended_well(name: str) -> None:
    assert _begun(name, signal.SIGTERM) == (0 if name in SERVICES else -signal.SIGTERM, "")


async def test_a_hang_up_while_it_is_imported_ends_no_replica(
    processes: Processes, server: RedisServer, client: Redis
) -> None:
    await client.xgroup_create("orders", "billing", "0", mkstream=True)
    words = ("-c", _code("reaper run", signal.SIGHUP), "run", *PAIR, "--redis-url", server.url)
    replica = processes.python(*words)
    await replica.prints("health|lease|replicas")
    replica.terminate()
    assert await replica.wait() == 0


def test_an_ignored_signal_stays_ignored() -> None:
    """As `nohup` and the background of a shell expect it."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv = ['reaper', 'status']\n"
        "from workers.runtime.entrance import enter, has_entered; enter(services=()); has_entered()\n"
        "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


async def test_after_a_service_signals_do_what_they_did_before() -> None:
    """Else SIGTERM during a worker's last exports kills it, and a program of a user's loses its handlers."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with received(signal.SIGTERM, signal.SIGHUP):
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
