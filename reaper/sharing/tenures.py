"""All groups that a replica watches."""

from collections.abc import Callable, Iterator, Sequence

import anyio
from anyio.abc import TaskGroup

from reaper.recovery.context import ReplicaContext
from reaper.replicas import GroupReport
from reaper.settings import ReaperSettings, WatchedGroup
from reaper.sharing.tenure import Tenure

RERANK_S = 10.0
"""So often each group looks who comes first, also if no replica comes or goes."""


class Tenures:
    """One tenure for each group. `run` must be running."""

    def __init__(self, context: ReplicaContext, able: Callable[[], Sequence[str] | None]) -> None:
        """``able`` returns the replicas that may hold groups, None while they are unknown."""
        self._context = context
        self._able = able
        self._tenures: dict[str, Tenure] = {}
        self._tasks: TaskGroup | None = None
        self._wanted: Sequence[WatchedGroup] = context.settings.watched

    async def run(self) -> None:
        """Serve what is ours until cancelled. At the end, all leases are handed to the other replicas."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._context.notices.run)
            self._tasks.start_soon(self._context.ticks.run)
            self.reload(self._context.settings, self._wanted)
            while True:
                await anyio.sleep(RERANK_S)
                self.rerank()

    def reload(self, settings: ReaperSettings, watched: Sequence[WatchedGroup]) -> None:
        """Begin with new groups, leave removed ones, and go on with changed ones."""
        self._context.settings, self._wanted = settings, watched
        if self._tasks is None:
            return
        wanted = {group.keys.pair: group for group in watched}
        self._context.watched = len(wanted)
        for pair in self._tenures.keys() - wanted.keys():
            self._tenures.pop(pair).stop()
        for pair, group in wanted.items():
            tenure = self._tenures.get(pair)
            if tenure is None:
                tenure = self._tenures[pair] = Tenure(self._context, group, self._able)
                self._tasks.start_soon(tenure.run)
            elif tenure.group != group:
                tenure.reload(group)

    def rerank(self) -> None:
        """Have each group look again who comes first: a replica has come or gone."""
        for tenure in self._tenures.values():
            tenure.rerank()

    # ---- status, for any thread

    def _all(self) -> Iterator[tuple[str, Tenure]]:
        yield from self._tenures.copy().items()

    @property
    def watched(self) -> dict[str, str]:
        """The pairs, each with the pattern that it was found by ('' = the settings name it)."""
        return {pair: tenure.group.pattern for pair, tenure in self._all()}

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
        return self._tasks is not None and all(tenure.has_answer for _, tenure in self._all())

    def errors(self) -> dict[str, str]:
        """Return what cannot be done now in which pair."""
        return {pair: tenure.error for pair, tenure in self._all() if tenure.error}

    def reports(self) -> dict[str, GroupReport]:
        """Return what to say of the groups that are served or observed here, or that cannot be, by pair."""
        return {pair: report for pair, tenure in self._all() if (report := tenure.report())}
