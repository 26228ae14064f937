"""What the parts of a worker share while it runs."""

import secrets
from dataclasses import dataclass

from redis.asyncio import Redis

from workers.loop.facts import DeliveryFacts
from workers.loop.membership import Membership
from workers.loop.numbers import Numbers
from workers.loop.proof import ProofOfLife
from workers.loop.reporting import Counts, Reporter
from workers.loop.telemetry import WorkerTelemetry
from workers.protocol.calls import Journal
from workers.protocol.calls.moves import Moves
from workers.protocol.connection import READ_PATIENCE_S, KeptConnection, commands_client, reader_client
from workers.protocol.keys import NONCE_BYTES
from workers.runtime.callbacks import Callbacks
from workers.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One run of a worker, and what its parts work with."""

    settings: WorkerSettings
    consumer: str
    """Our name in the group."""
    commands: Redis
    kept: KeptConnection
    """For what keeps deliveries ours: settlements, proofs of life from the event loop, and our word in the group."""
    reads: Redis
    """For reads that block."""
    membership: Membership
    proof: ProofOfLife
    moves: Moves
    numbers: Numbers
    reporter: Reporter
    telemetry: WorkerTelemetry | None
    """None where nobody listens."""

    @classmethod
    def make(cls, settings: WorkerSettings, callbacks: Callbacks[str]) -> "WorkerContext":
        """Make what a run needs; nothing is connected yet."""
        consumer = f"{settings.base_name}.{secrets.token_hex(NONCE_BYTES)}"
        commands = commands_client(settings.redis_url, key=settings.keys.stream)
        telemetry = WorkerTelemetry.make(settings, consumer)
        reporter = Reporter(settings.keys, consumer, callbacks, Counts(), telemetry)
        journal = Journal.at(settings.journal, settings.journal_maxlen)
        moves, numbers = Moves(settings.keys, journal.maxlen if journal.writes else 0), Numbers()
        kept = KeptConnection(commands)
        proof = ProofOfLife(kept, moves, consumer, numbers)
        membership = Membership(kept, settings, consumer, reporter, proof.prove)
        reads = reader_client(settings.redis_url, key=settings.keys.stream, timeout_s=READ_PATIENCE_S)
        return cls(settings, consumer, commands, kept, reads, membership, proof, moves, numbers, reporter, telemetry)

    @property
    def journal(self) -> Journal:
        """The arguments of scripts that write to the journal."""
        return Journal.at(self.settings.journal, self.settings.journal_maxlen)

    def facts(self) -> DeliveryFacts:
        """Return a builder of journalled facts, for one thread."""
        return DeliveryFacts(self.settings.recovery, self.settings.job_type_field, self.membership.now_ms)

    async def close(self) -> None:
        """Close the connections."""
        await self.commands.aclose()
        await self.reads.aclose()


class WorkerPart:
    """A part of a running worker, with what it takes from the context that all share."""

    def __init__(self, context: WorkerContext) -> None:
        self._settings = context.settings
        self._consumer = context.consumer
        self._commands = context.commands
        self._membership = context.membership
        self._reporter = context.reporter
        self._telemetry = context.telemetry
