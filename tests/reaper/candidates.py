"""One elector on a real server: what it is told to do while it leads, and what it reported."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from reaper.election.elector import Elector, EndOfTerm, Term
from tests.support.paced import PacedSettings
from workers.protocol.connection import commands_client, reader_client
from workers.runtime.settings import to_ms

Work = Callable[[Term], Awaitable[EndOfTerm]]


async def for_ever(_term: Term) -> EndOfTerm:
    """Work until cancelled."""
    await anyio.sleep_forever()
    raise AssertionError


@dataclass
class Candidate:
    """A replica's elector. ``work`` may be exchanged at any time; it counts from the next term on."""

    elector: Elector
    work: Work = for_ever
    inside: list[Term] = field(default_factory=list)
    """The term whose work runs now."""
    began: list[Term] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)
    """Token and reason of each term that is over."""
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self) -> None:
        with self._scope:
            await self.elector.run(self._work, self.began.append, self._ended)

    def stop(self) -> None:
        self._scope.cancel()

    async def _work(self, term: Term) -> EndOfTerm:
        self.inside.append(term)
        try:
            return await self.work(term)
        finally:
            self.inside.remove(term)

    def _ended(self, term: Term, end: EndOfTerm) -> None:
        self.ended.append((term.token, str(end)))

    @property
    def leads(self) -> bool:
        return bool(self.inside)

    @property
    def tokens(self) -> list[int]:
        return [term.token for term in self.began]


@asynccontextmanager
async def candidate(url: str, name: str = "alice", **settings: Any) -> AsyncIterator[Candidate]:
    """Build a candidate that does not run yet. Its TTL is long, its renewals are quick, unless said otherwise."""
    given = PacedSettings(**{"redis_url": url, "lease_ttl": 3_600, "renew_interval": 0.05, **settings})
    client = commands_client(url)
    reader = reader_client(url, block_ms=to_ms(given.acquire_retry))
    try:
        yield Candidate(Elector(client, reader, given, name))
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()
            await reader.aclose()


@asynccontextmanager
async def running(url: str, name: str = "alice", **settings: Any) -> AsyncIterator[Candidate]:
    """Run a candidate until the block ends, in order: what it holds is released."""
    async with candidate(url, name, **settings) as one, anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        yield one
        one.stop()
