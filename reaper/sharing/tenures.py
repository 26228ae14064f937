"""All groups that a replica watches."""

from collections import Counter
from collections.abc import Iterator, Sequence

import anyio
from anyio.lowlevel import checkpoint

from reaper.context import ReplicaContext
from reaper.replicas import GroupReport
from reaper.settings import WatchedGroup
from reaper.sharing.tenure import LEAVE_S, Tenure

RANKED_AT_ONCE = 250
"""Groups that apply a new order before other tasks have their turn."""


class Tenures:
    """One tenure for each group. `run` must be running."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._tenures: dict[str, Tenure] = {}
        self._wanted: Sequence[WatchedGroup] = context.settings.watched
        self.names: tuple[str, ...] = ()
        """The groups that are watched, as ``stream/group``."""
        self._is_stopping = anyio.Event()

    async def run(self) -> None:
        """Serve the groups until cancelled, and then hand all leases to other replicas."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work)
            try:
                await anyio.sleep_forever()
            finally:
                self._is_stopping.set()

    async def _work(self) -> None:
        """Run the tasks of the groups until all groups are left, also while `run` is cancelled."""
        context = self._context
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as context.tasks.group:
                context.tasks.start(context.notices.run)
                context.tasks.start(context.wheel.run)
                self.watch(self._wanted)
                await self._is_stopping.wait()
                with anyio.move_on_after(LEAVE_S):
                    for left in [tenure.stop(is_watched=True) for tenure in self._tenures.values()]:
                        await left.wait()
                context.tasks.group.cancel_scope.cancel()
        context.tasks.group = None

    def watch(self, watched: Sequence[WatchedGroup]) -> None:
        """Watch these groups. Begin new ones, and leave removed ones."""
        self._wanted = watched
        if self._context.tasks.group is None or self._is_stopping.is_set():
            return
        wanted = {group.keys.name: group for group in watched}
        self._context.watched = len(wanted)
        for name in self._tenures.keys() - wanted.keys():
            self._tenures.pop(name).stop(is_watched=False)
        for name, group in wanted.items():
            if name not in self._tenures:
                self._tenures[name] = Tenure(self._context, group)
                self._tenures[name].begin()
        self.names = tuple(self._tenures)

    def rerank(self) -> None:
        """Apply a new order of the replicas to each group."""
        self._context.tasks.start(self._rerank)

    async def _rerank(self) -> None:
        for number, tenure in enumerate(list(self._tenures.values()), 1):
            tenure.go_on()
            if number % RANKED_AT_ONCE == 0:
                await checkpoint()

    # ---- status, for any thread

    def _all(self) -> Iterator[tuple[str, Tenure]]:
        yield from self._tenures.copy().items()

    def numbers(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of watched and of held groups, by pattern."""
        watched = Counter(tenure.group.pattern for _, tenure in self._all())
        held = Counter(tenure.group.pattern for _, tenure in self._all() if tenure.is_held)
        return {pattern: (number, held[pattern]) for pattern, number in watched.items()}

    @property
    def held(self) -> int:
        """Number of groups whose lease this replica believes to hold."""
        return sum(tenure.is_held for _, tenure in self._all())

    @property
    def have_answers(self) -> bool:
        """Tell whether the replica knows the holder of each group that it may hold. A drained one may hold none."""
        may_hold = self._context.replica_id in (self._context.able or ())
        return self._context.tasks.group is not None and all(one.has_answer or not may_hold for _, one in self._all())

    def errors(self) -> dict[str, str]:
        """Return the current failures, by ``stream/group``."""
        return {name: tenure.error for name, tenure in self._all() if tenure.error}

    def reports(self) -> dict[str, GroupReport]:
        """Return reports of groups that this replica serves, observes or cannot serve, by ``stream/group``."""
        return {name: report for name, tenure in self._all() if (report := tenure.report())}
