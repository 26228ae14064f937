"""The objects that the parts of a running worker share."""

import asyncio
import secrets
from dataclasses import dataclass, field

from workers.loop.membership import Membership
from workers.loop.reporting import Reporter
from workers.loop.telemetry import WorkerTelemetry
from workers.protocol.calls.moves import Moves
from workers.protocol.connection import READ_PATIENCE_S, KeptConnection, commands_client, reader_client
from workers.protocol.keys import NONCE_BYTES
from workers.runtime.callbacks import Callbacks
from workers.settings import WorkerSettings


@dataclass(slots=True)
class SettlementTurn:
    """Settlements are numbered, and one of them is under way at a time (rules W2 and W6)."""

    answered: int = 0
    """Number of the settlement that was answered last. A call without an answer has the next one."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a settlement has no answer."""


class WorkerContext:
    """One run of a worker. No connection is open at first."""

    def __init__(self, settings: WorkerSettings, callbacks: Callbacks) -> None:
        key, url = settings.keys.stream, settings.redis_url
        self.settings = settings
        self.consumer = f"{settings.base_name}~{secrets.token_hex(NONCE_BYTES)}"
        self.commands = commands_client(url, key=key)
        self.kept = KeptConnection(self.commands)
        """For settlements, heartbeats from the event loop, and the registration."""
        self.reads = reader_client(url, key=key, timeout_s=READ_PATIENCE_S)
        """For blocking reads."""
        self.telemetry = WorkerTelemetry(settings, self.consumer)
        self.reporter = Reporter(settings.keys, self.consumer, callbacks, self.telemetry)
        self.membership = Membership(self.kept, settings, self.consumer, self.reporter)
        self.moves = Moves(settings.keys, settings.journal_limit, self.consumer)
        self.turn = SettlementTurn()

    async def close(self) -> None:
        """Close the connections."""
        await self.commands.aclose()
        await self.reads.aclose()


class WorkerPart:
    """Base of the parts of a running worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._settings = context.settings
        self._consumer = context.consumer
        self._commands = context.commands
        self._membership = context.membership
        self._reporter = context.reporter
        self._telemetry = context.telemetry
