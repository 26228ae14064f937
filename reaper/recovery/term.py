"""The work of one term of leadership: a watch for each stream/group pair."""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup
from redis.asyncio import Redis

from reaper.election.elector import Elector, EndOfTerm, Term
from reaper.recovery.context import TermContext
from reaper.recovery.group_watch import GroupWatch
from reaper.recovery.notes import settings_report
from reaper.recovery.verdict import Verdict
from reaper.replicas import GroupReport
from reaper.settings import ReaperSettings, WatchedGroup
from workers.runtime.callbacks import Callbacks
from workers.runtime.clock import monotonic_ms
from workers.runtime.notices import Notices


@dataclass(slots=True, eq=False)
class TermWork:
    """What a replica does while it leads. Pairs can be added and removed meanwhile."""

    client: Redis
    notices: Notices
    settings: ReaperSettings
    elector: Elector
    callbacks: Callbacks[str]
    changed: Callable[[], None]
    """Has this replica register at once."""
    _verdicts: dict[str, tuple[WatchedGroup, Verdict]] = field(default_factory=dict)
    _watches: dict[str, GroupWatch] = field(default_factory=dict)
    _tasks: TaskGroup | None = None
    _context: TermContext | None = None

    async def work(self, term: Term) -> EndOfTerm:
        """Watch until cancelled, or until a fence says that the term is over."""
        ended: list[EndOfTerm] = []

        def end(reason: EndOfTerm) -> None:
            ended.append(reason)
            tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self._context = TermContext(
                    self.client,
                    self.settings,
                    term,
                    self.elector,
                    self.callbacks,
                    end,
                    self.notices,
                    self.changed,
                )
                tasks.start_soon(self.notices.run)
                for group in self.settings.watched:
                    self._start(group, self._context, tasks)
                await anyio.sleep_forever()
        finally:
            self._tasks = self._context = None
            self._watches.clear()
        return ended[0] if ended else EndOfTerm.RELEASED

    def reload(self, settings: ReaperSettings) -> None:
        """Start watching new pairs, stop watching removed ones, restart those whose settings changed."""
        self.settings = settings
        if self._context is None or self._tasks is None:
            return
        wanted = {group.keys.pair: group for group in settings.watched}
        for pair, watch in list(self._watches.items()):
            if wanted.get(pair) != watch.group:
                watch.stop()
                del self._watches[pair]
        for pair, group in wanted.items():
            if pair not in self._watches:
                self._start(group, self._context, self._tasks)

    def _start(self, group: WatchedGroup, context: TermContext, tasks: TaskGroup) -> None:
        watch = GroupWatch(context, group, self._verdict_on(group))
        self._watches[group.keys.pair] = watch
        tasks.start_soon(watch.run)

    def _verdict_on(self, group: WatchedGroup) -> Verdict | None:
        """Return where an observer notes what it sees of a pair, as long as its settings stay as they are."""
        if not self.settings.observe:
            return None
        watched, verdict = self._verdicts.get(group.keys.pair, (None, None))
        if verdict is None or watched != group:
            verdict = Verdict(monotonic_ms())
            self._verdicts[group.keys.pair] = (group, verdict)
        return verdict

    def errors(self) -> dict[str, str]:
        """Return what cannot be done now in which pair, while this replica leads. For any thread."""
        return {pair: watch.error for pair, watch in self._watches.copy().items() if watch.error}

    def reports(self) -> dict[str, GroupReport]:
        """Return a report for each watched pair, by pair; settings alone while this replica follows."""
        if self._context is None:
            return {group.keys.pair: settings_report(self.settings, group) for group in self.settings.watched}
        return {pair: watch.report() for pair, watch in self._watches.items()}
