"""Tools of the faults. They find a target, wait for the effect, and record the fault."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any, TypeVar

import anyio

from reaper.drill.producer import Producer
from reaper.drill.records import InjectedFault, ProcessRun
from reaper.drill.stage import Stage
from reaper.drill.supervisor import Supervisor
from reaper.drill.witness import Witness
from workers.protocol.events import EventName, event_fields

PATIENCE_S = 15.0
"""How long to wait for the effect of a fault, beyond the timeouts that it depends on."""

_POLL_S = 0.01
_T = TypeVar("_T")


@dataclass(slots=True)
class Toolbox:
    """State that all faults of one act share, and the news for the screen."""

    stage: Stage
    supervisor: Supervisor
    producer: Producer
    witness: Witness
    injected: list[InjectedFault] = field(default_factory=list)
    waiting: int = 0
    """Due faults that wait for a process to hit."""
    nothing_left: bool = False
    """Set when no process to hit will come any more, so no fault needs to wait for one."""
    started_at: float = 0.0
    news: list[tuple[float, str]] = field(default_factory=list)
    """Sentences, each with the seconds since the start."""

    def begin(self) -> None:
        """Start the clock, and announce the faults that this mode cannot play, and processes that die."""
        self.started_at = time.time()
        self.supervisor.on_end = self._ended
        for asked, played in self.stage.settings.left_out(self.stage.recovery):
            self.announce(f"{asked} {f'becomes {played}' if played else 'is left out'}: no reaper runs")

    def _ended(self, run: ProcessRun) -> None:
        if run.killed_at is None and not run.stopped:
            self.announce(f"{run.role} {run.name} died (exit code {run.exit_code}); it is restarted")

    @property
    def passed_s(self) -> float:
        """Seconds since the start."""
        return time.time() - self.started_at

    def announce(self, sentence: str) -> None:
        """Add a sentence to the news."""
        self.news.append((self.passed_s, sentence))

    @property
    def visibility_s(self) -> float:
        """The visibility timeout in seconds."""
        return self.stage.settings.visibility_timeout.total_seconds()

    async def once(self, attempt: Callable[[], Awaitable[_T | None]], *, poll_s: float = _POLL_S) -> _T | None:
        """Attempt until it succeeds, or until no target is left."""
        result = await attempt()
        self.waiting += 1
        while result is None and not self.nothing_left:
            await anyio.sleep(poll_s)
            result = await attempt()
        self.waiting -= 1
        return result

    async def within(self, seconds: float, attempt: Callable[[], Any]) -> Any:
        """Attempt until the result is true. Return None after ``seconds``."""
        with anyio.move_on_after(seconds):
            while True:
                result = attempt()
                result = await result if isawaitable(result) else result
                if result:
                    return result
                await anyio.sleep(_POLL_S)
        return None

    async def note(self, fault: InjectedFault, sentence: str) -> None:
        """Record an injected fault here, on the screen, and in the journal of the namespace."""
        self.injected.append(fault)
        self.announce(sentence)
        facts = {"kind": fault.kind, "target": fault.target, "holder": fault.holder, "in_flight": fault.in_flight}
        words = event_fields(EventName.FAULT_INJECTED, **facts)
        async with self.producer.writing:
            await self.stage.namespace_client.execute_command("XADD", self.stage.namespace.journal, "*", *words)

    def over(self, fault: InjectedFault, sentence: str = "", **facts: Any) -> None:
        """Record that a fault has ended now, and its ``facts``, which are known only then."""
        self.injected[self.injected.index(fault)] = replace(fault, until=time.time(), **facts)
        if sentence:
            self.announce(sentence)
