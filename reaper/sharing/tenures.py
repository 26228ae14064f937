"""All groups that a replica watches."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import anyio
from anyio.lowlevel import checkpoint

from reaper.recovery.context import ReplicaContext
from reaper.replicas import GroupReport
from reaper.settings import WatchedGroup
from reaper.sharing.tenure import LEAVE_S, Tenure

RANKED_AT_ONCE = 250
"""So many groups learn of another order before other tasks have their turn."""


class Tenures:
    """One tenure for each group. `run` must be running."""

    def __init__(self, context: ReplicaContext, able: Callable[[], Sequence[str] | None]) -> None:
        """``able`` returns the replicas that may hold groups, None while they are unknown."""
        self._context = context
        self._able = able
        self._tenures: dict[str, Tenure] = {}
        self._wanted: Sequence[WatchedGroup] = context.settings.watched
        self.pairs: tuple[str, ...] = ()
        """The groups that are watched, as ``stream/group``."""
        self._is_reranked, self._is_stopping = anyio.Event(), anyio.Event()

    async def run(self) -> None:
        """Serve what is ours until cancelled. At the end, all leases are handed to the other replicas."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work)
            try:
                while True:
                    await self._is_reranked.wait()
                    self._is_reranked = anyio.Event()
                    for number, tenure in enumerate(list(self._tenures.values()), 1):
                        tenure.go_on()
                        if number % RANKED_AT_ONCE == 0:
                            await checkpoint()
            finally:
                self._is_stopping.set()

    async def _work(self) -> None:
        """Run what the groups need until all of them are left, also while `run` is cancelled."""
        context = self._context
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as context.tasks.group:
                context.tasks.start(context.notices.run)
                context.tasks.start(context.wheel.run)
                self.watch(self._wanted)
                await self._is_stopping.wait()
                with anyio.move_on_after(LEAVE_S):
                    await self._leave_all()
                context.tasks.group.cancel_scope.cancel()
        context.tasks.group = None

    async def _leave_all(self) -> None:
        has_left, staying = anyio.Event(), set(self._tenures)

        def left(pair: str) -> None:
            staying.discard(pair)
            if not staying:
                has_left.set()

        for pair, tenure in self._tenures.items():
            tenure.stop(partial(left, pair), is_watched=True)
        if staying:
            await has_left.wait()

    def watch(self, watched: Sequence[WatchedGroup]) -> None:
        """Begin with new groups, and leave removed ones."""
        self._wanted = watched
        if self._context.tasks.group is None or self._is_stopping.is_set():
            return
        wanted = {group.keys.pair: group for group in watched}
        self._context.watched = len(wanted)
        for pair in self._tenures.keys() - wanted.keys():
            self._tenures.pop(pair).stop(lambda: None, is_watched=False)
        for pair, group in wanted.items():
            if pair not in self._tenures:
                self._tenures[pair] = Tenure(self._context, group, self._able)
                self._tenures[pair].begin()
        self.pairs = tuple(self._tenures)

    def rerank(self) -> None:
        """Have each group look again who comes first: a replica has come or gone."""
        self._is_reranked.set()

    # ---- status, for any thread

    def _all(self) -> Iterator[tuple[str, Tenure]]:
        yield from self._tenures.copy().items()

    def numbers(self) -> dict[str, tuple[int, int]]:
        """Return how many groups are watched, and held, by pattern."""
        found: dict[str, tuple[int, int]] = {}
        for _, tenure in self._all():
            watched, held = found.get(tenure.group.pattern, (0, 0))
            found[tenure.group.pattern] = watched + 1, held + tenure.is_held
        return found

    @property
    def held(self) -> int:
        """How many groups this replica believes that it holds."""
        return sum(tenure.is_held for _, tenure in self._all())

    @property
    def terms(self) -> int:
        """How many leases this replica has taken."""
        return sum(tenure.terms for _, tenure in self._all())

    @property
    def have_answers(self) -> bool:
        """Tell whether the replica knows of each group who holds its lease."""
        return self._context.tasks.group is not None and all(tenure.has_answer for _, tenure in self._all())

    def errors(self) -> dict[str, str]:
        """Return what cannot be done now in which pair."""
        return {pair: tenure.error for pair, tenure in self._all() if tenure.error}

    def reports(self) -> dict[str, GroupReport]:
        """Return the reports of the groups that are served or observed here, or that cannot be, by pair."""
        return {pair: report for pair, tenure in self._all() if (report := tenure.report())}
