"""Fixtures of the operator's tests, which are a scene and the ``reaper`` command with its server in the environment."""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import anyio.to_thread
import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from reaper.cli.main import main
from tests.scripts.scene import Scene
from tests.support.servers import RedisServer


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its standard output, as JSON."""
        return json.loads(self.out)


class Command(Protocol):
    """Type of the `reaper` fixture."""

    async def __call__(self, *words: str, typed: str = "", **env: str) -> Answer:
        """Run ``reaper WORDS…``; ``typed`` is standard input, ``env`` is added to the environment."""


async def run_command(url: str, *words: str, typed: str = "", colour: bool = False, **env: str) -> Answer:
    """Run the command against ``url``, in a thread, because it brings an event loop of its own.

    ``colour``: standard output passes for a terminal.
    """
    runner = CliRunner(env={"REAPER_REDIS_URL": url, **env})
    result = await anyio.to_thread.run_sync(partial(runner.invoke, main, words, input=typed, color=colour))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def reaper(server: RedisServer) -> Command:
    """The ``reaper`` command, on `server`."""
    return partial(run_command, server.url)


@pytest.fixture
async def scene(client: Redis) -> Scene:
    """A stream ``orders`` with a group ``billing``. The replica alice holds its lease."""
    prepared = Scene(client)
    await prepared.prepare()
    return prepared
