"""The objects that the parts of a running worker share."""

import asyncio
import secrets
from dataclasses import dataclass, field

from redis.asyncio import Redis

from workers.loop.facts import DeliveryFacts
from workers.loop.membership import Membership
from workers.loop.reporting import Counts, Reporter
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


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One run of a worker."""

    settings: WorkerSettings
    consumer: str
    """Our consumer name."""
    commands: Redis
    kept: KeptConnection
    """For settlements, heartbeats from the event loop, and the registration."""
    reads: Redis
    """For blocking reads."""
    membership: Membership
    moves: Moves
    turn: SettlementTurn
    reporter: Reporter
    telemetry: WorkerTelemetry
    journal_limit: int
    """Length of the journal; 0 = none is written."""

    @classmethod
    def make(cls, settings: WorkerSettings, callbacks: Callbacks) -> "WorkerContext":
        """Create the objects of a run. No connection is open yet."""
        consumer = f"{settings.base_name}.{secrets.token_hex(NONCE_BYTES)}"
        commands = commands_client(settings.redis_url, key=settings.keys.stream)
        telemetry = WorkerTelemetry(settings, consumer)
        reporter = Reporter(settings.keys, consumer, callbacks, Counts(), telemetry)
        kept, limit = KeptConnection(commands), settings.journal_limit
        return cls(
            settings=settings,
            consumer=consumer,
            commands=commands,
            kept=kept,
            reads=reader_client(settings.redis_url, key=settings.keys.stream, timeout_s=READ_PATIENCE_S),
            membership=Membership(kept, settings, consumer, reporter),
            moves=Moves(settings.keys, limit, consumer),
            turn=SettlementTurn(),
            reporter=reporter,
            telemetry=telemetry,
            journal_limit=limit,
        )

    def facts(self) -> DeliveryFacts:
        """Return a builder of the fields of journal events, for one thread."""
        return DeliveryFacts(self.settings.recovery, self.settings.job_type_field, self.membership.now_ms)

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
