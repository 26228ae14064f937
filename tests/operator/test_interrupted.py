"""Ctrl-C: whatever waits ends at once, without a word, with the code that the documentation gives."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import click
import pytest
from anyio.abc import SocketStream
from redis.asyncio import Redis

from tests.operator.every import typed
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import happens, wait_until
from workers.protocol.errors import NotPossibleError
from workers.runtime.options import INTERRUPTED_EXIT
from workers.runtime.printing import confirm

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

"""Commands that Ctrl-C is the way to end."""


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[str, anyio.Event]]:
    """Give the address of a server that listens and never answers, and an event: somebody waits for it."""
    asked = anyio.Event()

    async def listen(stream: SocketStream) -> None:
        async with stream:
            async for _ in stream:
                asked.set()

    port = free_port()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, listen)
        yield f"redis://127.0.0.1:{port}/0", asked
        tasks.cancel_scope.cancel()


def _sleeps(running: Running) -> bool:
    """Tell whether a process has nothing to do."""
    return Path(f"/proc/{running.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "S"


async def _interrupted(processes: Processes, name: str) -> tuple[int, str]:
    async with silent_server() as (url, asked):
        running = processes.python("-m", "reaper", *typed(name), "--redis-url", url)
        await happens(asked.wait, f"{name} asks Redis")
        # Before Python 3.12, asyncio.wait_for can swallow a cancellation.
        await wait_until(partial(_sleeps, running), f"{name} waits for the answer")
        running.interrupt()
        return await running.wait(), running.output


async def test_a_command_that_waits_ends_without_a_word(processes: Processes) -> None:
    assert await _interrupted(processes, "reaper status") == (INTERRUPTED_EXIT, "\n")


async def test_a_redrive_that_is_cut_short_says_what_was_done(
    processes: Processes, server: RedisServer, client: Redis
) -> None:
    await client.xgroup_create("orders", "billing", "0", mkstream=True)
    dead = {"reaper.job": "j", "reaper.stream": "orders", "reaper.group": "billing"}
    for _ in range(20):
        await client.xadd("{orders}:dead:billing", dead)  # type: ignore[arg-type]
    words = ("dead-letters", "redrive", "orders/billing", "--all", "--rate", "1", "--redis-url", server.url)
    running = processes.python("-m", "reaper", *words)

    async def has_begun() -> bool:
        return await client.xlen("orders") > 0

    await wait_until(has_begun, "one was redriven")
    running.interrupt()
    assert await running.wait() == INTERRUPTED_EXIT
    assert " redriven" in running.output
    assert running.output.strip().count("\n") == 0


@pytest.fixture
def _typed_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)


@pytest.mark.usefixtures("_typed_ctrl_c")
def test_ctrl_c_is_no_answer_to_a_question() -> None:
    with pytest.raises(click.Abort):
        confirm("Remove it?")


def test_a_closed_standard_input_is_no_answer_to_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(NotPossibleError, match="not confirmed"):
        confirm("Remove it?")
