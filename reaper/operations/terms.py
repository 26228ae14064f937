"""Leadership for operators: the last terms with the reasons of their ends, and a request to step down."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import anyio
from redis.asyncio import Redis

from reaper.operations.snapshot import look_at_namespace
from reaper.operations.streams import events_in, newest_first
from workers.protocol.errors import NotPossibleError
from workers.protocol.events import EventName, LifecycleEvent
from workers.protocol.keys import NamespaceKeys
from workers.protocol.messages import text, whole_number
from workers.protocol.scripts import load_script

TERMS_READ = 500
"""Journal entries that are read for the last terms. A term has two, and drills add others."""
UNTOLD = "untold"
"""The end of a term whose leader was killed, paused or disconnected: the lease expired."""
WATCH_S = 0.1
COOLDOWN_S = 30.0
"""How long a leader that stepped down does not take the lease again."""

_NONCE = re.compile(r"\.[0-9a-f]+@\d+$")


def replica_of(holder: str) -> str:
    """Return the ID of the replica that made a holder: ``replica.nonce@TTL``."""
    return _NONCE.sub("", holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTerm:
    """One term in the namespace's journal. Instants are in ms of the server's clock. 0 is unknown."""

    token: int
    holder: str
    began_ms: int = 0
    ended_ms: int = 0
    end: str = ""
    """The reason of its end (`reaper.election.elector.EndOfTerm`), '' if it continues, or `UNTOLD`."""

    @property
    def replica(self) -> str:
        """ID of the replica that led."""
        return replica_of(self.holder)


async def read_terms(client: Redis, keys: NamespaceKeys, most: int = 10) -> tuple[PastTerm, ...]:
    """Return the last terms, newest first. Raises what redis-py raises."""
    events = [event async for event in events_in(newest_first(client, keys.journal, TERMS_READ))]
    return tell_terms(events, await _holder(client, keys))[:most]


def tell_terms(events: Iterable[LifecycleEvent], holder: str) -> tuple[PastTerm, ...]:
    """Put terms together from the namespace's events, newest first; ``holder`` has the lease now."""
    terms: dict[int, PastTerm] = {}
    for event in events:
        token = event.number("token")
        if not token:
            continue
        term = terms.get(token) or PastTerm(token=token, holder=str(event.data.get("holder", "")))
        if event.event == EventName.LEASE_ACQUIRED:
            term = replace(term, began_ms=event.at_ms)
        elif event.event in (EventName.LEASE_RELEASED, EventName.LEASE_LOST):
            term = replace(term, ended_ms=event.at_ms, end=str(event.data.get("reason", UNTOLD)))
        terms[token] = term
    return tuple(
        term if term.end or term.holder == holder else replace(term, end=UNTOLD)
        for _, term in sorted(terms.items(), reverse=True)
    )


async def ask_to_step_down(client: Redis, keys: NamespaceKeys, *, cooldown_ms: int, alone: bool = False) -> str:
    """Ask the leader to release its lease, and not to take it for ``cooldown_ms``. Return its holder.

    The leader does so at its next renewal. Raises NotPossibleError if there is no leader, and, without ``alone``, if
    there is no live follower.
    """
    script = load_script("reaper", "step_down")
    while True:
        seen = await look_at_namespace(client, keys)
        holder = seen.holder
        if not holder:
            raise NotPossibleError(
                f"cannot step down: no replica holds the lease of namespace {keys.namespace!r}. "
                "See `reaper leader show`."
            )
        if not seen.followers and not alone:
            raise NotPossibleError(
                "cannot step down: there is no live follower, so no replica would lead during the cooldown. Start a "
                "second replica, or use --alone."
            )
        if await script.run_idempotent(client, [keys.lease, keys.step_down], [holder, cooldown_ms]):
            return holder  # it had the lease still, and so was asked


async def _holder(client: Redis, keys: NamespaceKeys) -> str:
    """Return the holder of the lease, or ''."""
    return text(await client.get(keys.lease) or b"")


async def await_successor(client: Redis, keys: NamespaceKeys, holder: str, timeout_s: float) -> tuple[str, int]:
    """Wait until a replica other than ``holder`` has the lease. Return its holder and token, or ("", 0)."""
    with anyio.move_on_after(timeout_s):
        while True:
            current = await _holder(client, keys)
            if current and current != holder:
                token: Any = await client.get(keys.token)
                return current, whole_number(token, 0)
            await anyio.sleep(WATCH_S)
    return "", 0
