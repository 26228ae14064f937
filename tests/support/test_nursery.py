"""A process of the nursery is like any other, with libraries that it need not read."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.nursery import Nursery
from tests.support.processes import ROOT, Processes, Running
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are adopted on Linux only"),
]

TELLER = "tests.support.telling_program"


def told(child: Running) -> list[str]:
    """Return what the program told of itself, once it has ended."""
    return child.output.splitlines()


async def tell(processes: Processes, what: str, *words: str, **env: str) -> list[str]:
    child = processes.python("-m", TELLER, what, *words, env=env)
    await child.wait()
    return told(child)


async def test_it_has_its_own_words_environment_directory_session_and_parent(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REAPER_GROUP", "leaked")
    expected = [f"words {['--flag', 'value']}", "settings ['REAPER_X=1']", f"folder {ROOT}", "leads its session"]
    assert (await tell(processes, "itself", "--flag", "value", REAPER_X="1")) == [
        *expected,
        f"parent {os.getpid()}",
        "main",
    ]


async def test_modules_are_there_but_those_of_tests(processes: Processes) -> None:
    told = ["redis True", "pydantic True", "workers.worker True", "tests ['tests', 'tests.support']"]
    assert await tell(processes, "modules") == told


async def test_two_of_them_draw_different_numbers(processes: Processes) -> None:
    assert await tell(processes, "random") != await tell(processes, "random")


@pytest.mark.parametrize(
    ("what", "code"), [("returns", 0), ("exits", 3), ("raises", 1), ("killed", -signal.SIGKILL), ("exits late", 4)]
)
async def test_its_end_is_that_of_an_interpreter(processes: Processes, what: str, code: int) -> None:
    child = processes.python("-m", TELLER, what)
    assert await child.wait() == code
    assert (child.running, child.exit_code) == (False, code)
    assert ("Traceback" in child.output) == (what == "raises")


async def test_it_leads_its_group_as_soon_as_it_is_known(processes: Processes) -> None:
    children = [processes.python("-m", TELLER, "itself") for _ in range(20)]
    assert [os.getpgid(child.pid) for child in children] == [child.pid for child in children]


async def test_it_dies_with_the_process_that_started_it(processes: Processes) -> None:
    parent = processes.python("-c", f"from {TELLER} import start_one_and_wait; start_one_and_wait()")
    pid = int((await parent.prints(r"^started (\d+)$"))[1])
    parent.kill()
    await wait_until(lambda: not is_alive(pid), "it is gone with its parent")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    return state != "Z"


@pytest.mark.parametrize(
    ("words", "additions", "taken"),
    [
        (("-m", "workers", "run"), "", True),
        (("-m", "reaper"), "REAPER_NAMESPACE OTEL_SERVICE_NAME", True),
        (("-m", "mypy"), "", False),
        (("-c", "pass"), "", False),
        (("program.py",), "", False),
        ((), "", False),
        (("-W", "error", "-m", "reaper"), "", False),
        (("-m", "reaper"), "REAPER_NAMESPACE LD_PRELOAD", False),
        (("-m", "reaper"), "PYTHONDEVMODE", False),
        (("-m", "reaper"), "PYTHONPATH", False),
        (("-m", "reaper"), "OTEL_PROPAGATORS", False),
    ],
)
def test_what_counts_before_a_program_begins_starts_the_usual_way(
    words: tuple[str, ...], additions: str, taken: bool
) -> None:
    assert Nursery(ROOT).takes(words, additions.split()) is taken
