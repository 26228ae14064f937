"""Takes over deliveries that nobody runs.

They are those of earlier processes of the worker's name, and our own whose read was answered into the void. A sweep
walks over what one consumer holds of one source, a page at a time, as slots become free. Deliveries of a process
that died are counted, since it may have died of them; the last one that a job may have is a suspect, and suspects
run one at a time, the next only once the one before has settled.
"""

import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import time_ns

from workers.loop.context import Part, WorkerContext
from workers.loop.held import Held, Source
from workers.loop.telemetry import ADOPT as BY_ADOPTION
from workers.loop.telemetry import RESTART
from workers.protocol.calls.membership import delete_consumers
from workers.protocol.calls.recovery import Adopted, AdoptionMode, Outcome, Recovered, adopt
from workers.protocol.keys import NONCE_BYTES
from workers.protocol.messages import counted, text
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Sweep:
    """One walk over what ``owner`` holds of ``source``."""

    source: Source
    owner: str
    mode: AdoptionMode
    start: str = "-"
    """Behind this entry; '' = the walk is over, and what is left is to delete the earlier process's consumer."""
    for_suspects: bool = False
    """The second walk over an earlier process's deliveries, which takes the suspects."""
    suspects_left: int = 0


def is_earlier_process(consumer: str, name: str, ours: str) -> bool:
    """Tell whether ``consumer`` was a process of the worker ``name``, and is not ours."""
    return consumer != ours and re.fullmatch(rf"{re.escape(name)}\.[0-9a-f]{{{NONCE_BYTES * 2}}}", consumer) is not None


class Adoption(Part):
    """What is still to be taken over, and how."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._journal = context.journal
        self._sweeps: deque[Sweep] = deque()
        self._suspect: Held | None = None
        self._not_before = 0.0

    # ---- what is to be done

    async def look_for_earlier_processes(self) -> None:
        """Plan to take over what earlier processes of our name hold. Raises what redis-py raises."""
        for source in self._membership.sources:
            rows = await self._commands.xinfo_consumers(source.key, self._settings.group)
            earlier = {
                text(row["name"]): row["pending"]
                for row in rows
                if is_earlier_process(text(row["name"]), self._settings.base_name, self._consumer)
            }
            await self._delete_consumers(source, list(earlier))
            for owner, pending in earlier.items():
                if pending:
                    held = counted(pending, "delivery")
                    logger.info("taking over %s of %s from %s", held, source.key, owner)
                    self._sweeps.append(Sweep(source, owner, AdoptionMode.RESTART))

    def take_stock(self, *, claimed: bool = False) -> None:
        """Plan to look for deliveries of ours that we know nothing of, and for none in a stream that is gone.

        ``claimed``: the reply of a read with CLAIM was lost.
        """
        sources = self._membership.sources
        self._sweeps = deque(sweep for sweep in self._sweeps if sweep.source in sources)
        for source in sources:
            ours = next((one for one in self._sweeps if one.owner == self._consumer and one.source is source), None)
            if ours is None:
                ours = Sweep(source, self._consumer, AdoptionMode.REREAD)
                self._sweeps.appendleft(ours)
            ours.start = "-"  # what it has passed by may have become ours since
            if claimed:
                ours.mode = AdoptionMode.CLAIMED

    def put_off(self, pause_s: float) -> None:
        """Take nothing over for so long: Redis has refused it. Then stock is taken, since something may be ours."""
        self._not_before = monotonic() + pause_s
        self.take_stock()

    @property
    def is_due(self) -> bool:
        """Tell whether there is something to take over now."""
        return self._next_sweep() is not None and monotonic() >= self._not_before

    @property
    def is_waiting(self) -> bool:
        """Tell whether suspects wait until the one that is out has settled."""
        return bool(self._sweeps) and monotonic() >= self._not_before

    def _next_sweep(self) -> Sweep | None:
        suspect = self._suspect
        one_is_out = suspect is not None and suspect.source.holds(suspect)
        return next((sweep for sweep in self._sweeps if not (sweep.for_suspects and sweep.start and one_is_out)), None)

    # ---- doing it

    async def take(self, room: int) -> list[Held]:
        """Take over at most ``room`` deliveries, in one call or none at all. Raises what redis-py raises.

        After an error, take stock: what was taken over without our learning of it is ours by then.
        """
        sweep = self._next_sweep()
        if sweep is None:
            return []
        if not sweep.start:
            self._sweeps.remove(sweep)
            await self._delete_consumers(sweep.source, [sweep.owner])
            return []
        asked_at, began_ns = monotonic(), time_ns()
        page = await adopt(
            self._commands,
            sweep.source.key,
            self._settings.keys,
            consumer=self._consumer,
            owner=sweep.owner,
            mode=sweep.mode,
            room=room,
            suspects=int(sweep.for_suspects),
            agreement=self._membership.agreement,
            journal=self._journal,
            start=sweep.start,
            in_flight=() if sweep.mode is AdoptionMode.RESTART else sweep.source.in_flight(),
        )
        self._has_walked(sweep, page)
        for row in page.ended:
            if row.outcome is Outcome.HELD:
                self._log_held(sweep, row)
            else:
                self._report_dead_letter(sweep, row, began_ns)
        deliveries = self._deliveries(sweep, page, asked_at)
        if sweep.for_suspects and deliveries:
            self._suspect = deliveries[0]
        return deliveries

    def _has_walked(self, sweep: Sweep, page: Adopted) -> None:
        sweep.start = page.next_start
        sweep.suspects_left += page.suspects_left
        if sweep.start or (sweep.mode is AdoptionMode.RESTART and not sweep.suspects_left):
            return
        self._sweeps.remove(sweep)
        if sweep.suspects_left:
            self._sweeps.append(Sweep(sweep.source, sweep.owner, AdoptionMode.RESTART, for_suspects=True))

    def _deliveries(self, sweep: Sweep, page: Adopted, asked_at: float) -> list[Held]:
        max_deliveries, now_ms = self._membership.agreement.max_deliveries, self._membership.now_ms()
        taken = [row for row in page.taken if not sweep.source.comes_again(row.entry_id, row.times_delivered, asked_at)]
        deliveries = [
            Held(
                sweep.source,
                row.entry_id,
                row.fields,
                row.times_delivered,
                max_deliveries,
                now_ms,
                asked_at,
                page.notes.get(row.entry_id),
            )
            for row in taken
        ]
        for held, row in zip(deliveries, taken, strict=True):
            self._reporter.adopted(held, sweep.owner, row.idle_ms)
        return deliveries

    async def _delete_consumers(self, source: Source, consumers: Sequence[str]) -> None:
        await delete_consumers(self._commands, source.key, self._settings.keys, consumers)

    async def leave(self) -> None:
        """Remove our own consumer where it holds nothing. Raises what redis-py raises."""
        for source in self._membership.sources:
            await self._delete_consumers(source, [self._consumer])

    # ---- telling

    def _report_dead_letter(self, sweep: Sweep, row: Recovered, began_ns: int) -> None:
        if self._telemetry:
            self._telemetry.recovered(row, reason=RESTART, mode=BY_ADOPTION, began_ns=began_ns)
        self._reporter.write_dead_letter(
            text(row.job_id),
            limit=self._membership.agreement.max_deliveries,
            entry=text(row.entry_id),
            delivery=row.delivery_count,
            consumer=sweep.owner,
            reason="max_deliveries",
            error="the worker process ended while it held the job",
            dead_letter=row.told,
        )

    def _log_held(self, sweep: Sweep, row: Recovered) -> None:
        logger.error(
            "entry %s of %s, held by %s, had its last delivery and cannot be dead-lettered: %s. It stays pending",
            text(row.entry_id),
            sweep.source.key,
            sweep.owner,
            row.told,
        )
