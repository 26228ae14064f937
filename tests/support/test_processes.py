"""Child processes are started, observed, and ended for certain."""

import signal
import socket
from pathlib import Path

import pytest

from tests.support.processes import Processes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_ECHO_SIGNALS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready")
while True:
    signal.pause()
"""


async def test_output_and_exit_code_are_collected(processes: Processes) -> None:
    child = processes.python("-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert await child.wait() == 3
    assert child.output == "out\nerr\n"


async def test_a_terminated_process_may_clean_up(processes: Processes) -> None:
    child = processes.python("-c", _ECHO_SIGNALS)
    await child.prints("ready")
    child.terminate()
    assert await child.wait() == 7


async def test_a_paused_process_does_nothing_until_it_is_resumed(processes: Processes) -> None:
    child = processes.python("-c", _ECHO_SIGNALS)
    await child.prints("ready")
    child.pause()
    child.terminate()
    with pytest.raises(AssertionError, match="still runs"):
        await child.wait(patience=0.1)
    child.resume()
    assert await child.wait() == 7


async def test_a_killed_process_is_gone_at_once_and_may_be_killed_again(processes: Processes) -> None:
    child = processes.start("sleep", "60")
    child.kill()
    child.kill()
    assert (child.running, child.exit_code) == (False, -signal.SIGKILL)


async def test_a_process_that_ends_early_is_reported_with_what_it_printed(processes: Processes) -> None:
    child = processes.python("-c", "print('sorry')")
    with pytest.raises(AssertionError, match="ended without printing 'ready':\nsorry"):
        await child.prints("ready")


async def test_settings_of_ours_in_the_environment_do_not_leak(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REAPER_NAMESPACE", "leaked")
    program = "import os; print(sorted(name for name in os.environ if name.startswith(('REAPER', 'WORKER'))))"
    child = processes.python("-c", program, env={"REAPER_GROUP": "billing"})
    assert await child.wait() == 0
    assert child.output == "['REAPER_GROUP']\n"


def test_everything_is_ended_with_the_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    family = Processes(tmp_path)
    parent = family.python("-c", "import subprocess; subprocess.run(['sleep', '60'])")
    paused = family.start("sleep", "60")
    paused.pause()
    family.end()
    assert [parent.exit_code, paused.exit_code] == [-signal.SIGKILL, -signal.SIGKILL]
    assert "sleep-2 (exit code -9) printed" in capsys.readouterr().out


async def test_servers_do_not_outlive_a_session_that_is_killed(processes: Processes) -> None:
    program = (
        "from tests.support.servers import started_server\n"
        "with started_server() as server:\n"
        "    print('port', server.port)\n"
        "    __import__('signal').pause()\n"
    )
    session = processes.python("-c", program)
    port = int((await session.prints(r"port (\d+)$")).group(1))
    session.kill()
    await wait_until(lambda: _refuses(port), "the server is gone with its session")


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it is ending just now
        return False
    return False
