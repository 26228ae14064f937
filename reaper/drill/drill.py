"""Plays a drill on one Redis, with an act for each recovery mode, the same trace and the same faults."""

import errno
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from redis.exceptions import RedisError

from reaper.drill import queries
from reaper.drill.act import Ending, play
from reaper.drill.kit import Kit
from reaper.drill.live import Screen
from reaper.drill.recoveries import Recovery
from reaper.drill.redis_server import Server
from reaper.drill.settings import IN_PLACE, DrillSettings
from reaper.drill.stage import Stage, set_stage
from reaper.drill.trace import PlannedJob
from workers.protocol.errors import ConfigurationError, UnreachableError
from workers.runtime.children import received

CLEANUP_TIMEOUT_S = 5.0


class _InterruptedError(Exception):
    """A signal ends the drill."""


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """The content of a drill."""

    settings: DrillSettings
    jobs: Sequence[PlannedJob]
    recoveries: Sequence[Recovery]
    kit: Kit = field(default_factory=Kit)


def perform(
    plan: DrillPlan, screen: Screen, *, opens: Callable[[str], None], closes: Callable[[Ending], None]
) -> list[Ending]:
    """Play every act, and leave no process and no key behind, however it ends.

    ``opens`` gets a text about the Redis and the title of each act. ``closes`` gets the ending of each act. Raises a
    StreamReaperError, and KeyboardInterrupt if a signal ended the drill.
    """
    settings = plan.settings.for_jobs(plan.jobs)
    if plan.settings.has_bare_worker and not settings.bare_worker:
        opens("Some jobs reach the visibility timeout: no bare worker takes part, which cannot extend them.")
    plan = replace(plan, settings=settings)
    try:
        return anyio.run(_perform, plan, screen, opens, closes)
    except BaseExceptionGroup as group:
        raise _first_cause(group) from group


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in the groups in which task groups wrap it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, _InterruptedError):
        return KeyboardInterrupt()
    if isinstance(error, RedisError):
        return UnreachableError(f"Redis failed during the drill: {error}")
    return error


async def _perform(
    plan: DrillPlan, screen: Screen, opens: Callable[[str], None], closes: Callable[[Ending], None]
) -> list[Ending]:
    endings: list[Ending] = []
    async with anyio.create_task_group() as group:
        group.start_soon(_end_on_signal)
        run_id = secrets.token_hex(4)
        settings = plan.settings
        with run_folder(settings.files, "drill") as folder:
            async with plan.kit.server(settings, folder) as server:
                await _check_claim(plan, server)
                opens(f"{server.description}.")
                for recovery in plan.recoveries:
                    heading = f"Act {len(endings) + 1}" if len(plan.recoveries) > 1 else "Drill"
                    opens(f"\n{heading}: {recovery.title}")
                    async with _stage(plan, server, recovery, folder, run_id) as stage:
                        endings.append(await play(stage, plan.jobs, screen, plan.kit))
                    if endings[-1].objections:
                        _check_space(folder)
                    closes(endings[-1])
        group.cancel_scope.cancel()
    return endings


def _check_space(folder: Path) -> None:
    """Raise OSError on a full disk, because the drill knows an execution only by the lines that the worker writes."""
    if shutil.disk_usage(folder).free < 8_192:  # a file system may keep a page for itself
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


async def _end_on_signal() -> None:
    with received(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for number in signals:
            raise _InterruptedError(number)


@contextmanager
def run_folder(files: Path | None, kind: str) -> Iterator[Path]:
    """Give a new folder in ``files``, or a temporary one without ``files``.

    Raises ConfigurationError.
    """
    if files is None:
        with tempfile.TemporaryDirectory(prefix=f"reaper-{kind}-") as temporary:
            yield Path(temporary)
        return
    folder = files.absolute() / f"{kind}-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigurationError(f"cannot use --files {files}: {error.strerror}.") from error
    yield folder


async def _check_claim(plan: DrillPlan, server: Server) -> None:
    """Reject modes that the server does not support. Raises ConfigurationError and errors of redis-py."""
    if plan.settings.policy == IN_PLACE and not await server.knows_claim():
        raise ConfigurationError(f"--policy in-place {server.lacks_claim}")


@asynccontextmanager
async def _stage(
    plan: DrillPlan, server: Server, recovery: Recovery, folder: Path, run_id: str
) -> AsyncIterator[Stage]:
    """Set the stage of one act. Afterwards, delete its keys in a Redis of the user, unless they are to be kept."""
    names = plan.kit.names(run_id, recovery)
    stage = set_stage(server, plan.settings, recovery, folder, names)
    try:
        yield stage
    finally:
        with anyio.move_on_after(CLEANUP_TIMEOUT_S, shield=True):
            if not server.ours and not plan.settings.keep_keys:
                await queries.forget(stage)
            for client in {stage.client, stage.namespace_client}:
                await client.aclose()
