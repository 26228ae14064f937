"""The supervisor, with small processes of its own."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from reaper.drill.records import ProcessRun, Role
from reaper.drill.supervisor import ProcessFailedError, Slot, Supervisor
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

WAIT = "import signal, sys; print('up', flush=True); signal.sigwait({signal.SIGTERM}); sys.exit(0)"
WAIT_FOR_TERM = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}}); {WAIT}"


def _slot(name: str, program: str, role: Role = Role.WORKER) -> Slot:
    return Slot(name, role, lambda _: ([sys.executable, "-c", program], dict(os.environ)))


def _supervisor(folder: Path) -> Supervisor:
    return Supervisor(folder, restart_delay_s=0)


async def _up(supervisor: Supervisor, name: str) -> ProcessRun:
    """Wait until process ``name`` has told that it is up, and the supervisor knows of it, too."""
    told = supervisor.folder / f"{name}.out"

    def known() -> ProcessRun | None:
        up = told.exists() and "up" in told.read_text()
        return next((run for run in supervisor.history if run.name == name), None) if up else None

    run = await wait_until(known, f"{name} is up")
    assert run
    return run


def _exists(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_what_dies_is_started_again_under_a_name_of_its_own(tmp_path: Path) -> None:
    ended: list[str] = []
    supervisor = Supervisor(tmp_path, on_end=lambda run: ended.append(run.name), restart_delay_s=0)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run, [_slot("w1", WAIT_FOR_TERM)])
        first = await _up(supervisor, "w1-1")
        assert supervisor.kill(first)
        second = await _up(supervisor, "w1-2")
        assert not supervisor.kill(first)
        await supervisor.stop(Role.WORKER)
    assert ended == ["w1-1", "w1-2"]
    assert [(run.name, run.exit_code, run.stopped, run.killed_at is None) for run in supervisor.history] == [
        ("w1-1", -9, False, False),
        ("w1-2", 0, True, True),
    ]
    assert not _exists(second.pid)


async def test_only_the_roles_that_are_told_to_stop_do(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run, [_slot("w1", WAIT_FOR_TERM), _slot("r1", WAIT_FOR_TERM, Role.REAPER)])
        await _up(supervisor, "w1-1")
        await _up(supervisor, "r1-1")
        await supervisor.stop(Role.WORKER)
        assert [run.name for run in supervisor.alive(*Role)] == ["r1-1"]
        await supervisor.stop(Role.REAPER)
    assert supervisor.alive(*Role) == []


async def test_a_process_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    supervisor = _supervisor(tmp_path)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run, [_slot("w1", stubborn)])
        await _up(supervisor, "w1-1")
        await supervisor.stop(Role.WORKER, within_s=0.05)
    assert [run.exit_code for run in supervisor.history] == [-9]


async def test_what_fails_again_and_again_is_given_up_with_what_it_printed(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path)
    with pytest.raises(ExceptionGroup) as failure:
        await supervisor.run([_slot("w1", "raise SystemExit('no such setting')"), _slot("w2", WAIT_FOR_TERM)])
    (error,) = failure.value.exceptions
    assert isinstance(error, ProcessFailedError)
    assert "w1-3 ended 3 times" in str(error)
    assert str(error).splitlines()[1:] == ["--- w1-3", "no such setting"], "sentences, each on a line of its own"
    assert not any(_exists(run.pid) for run in supervisor.history)


async def test_what_is_held_back_starts_again_only_when_it_is_let(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run, [_slot("r1", WAIT_FOR_TERM, Role.REAPER), _slot("w1", WAIT_FOR_TERM)])
        reaper, worker = await _up(supervisor, "r1-1"), await _up(supervisor, "w1-1")
        supervisor.hold_back(Role.REAPER)
        supervisor.kill(reaper)
        supervisor.kill(worker)
        await _up(supervisor, "w1-2")
        await wait_until(
            lambda: [run.name for run in supervisor.alive(*Role)] == ["w1-2"], "the killed reaper has ended"
        )
        supervisor.let_start(Role.REAPER)
        await _up(supervisor, "r1-2")
        await supervisor.stop(*Role)


async def test_while_nothing_can_start_well_failing_is_no_failure(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path)
    supervisor.forgive(3_600)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run, [_slot("w1", "raise SystemExit(1)")])
        await wait_until(lambda: len(supervisor.history) > 4, "it is started again and again")
        await supervisor.stop(Role.WORKER)


async def test_what_a_process_has_used_is_known_after_it_was_killed(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run, [_slot("w1", WAIT_FOR_TERM)])
        run = await _up(supervisor, "w1-1")
        supervisor.measure()
        used = run.cpu_s
        supervisor.kill(run)
        await supervisor.stop(Role.WORKER)
    assert 0 < used <= run.cpu_s


async def test_no_process_outlives_a_cancelled_supervisor_not_even_a_paused_one(tmp_path: Path) -> None:
    supervisor = _supervisor(tmp_path)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run, [_slot("w1", WAIT_FOR_TERM), _slot("w2", WAIT_FOR_TERM)])
        paused = await _up(supervisor, "w1-1")
        await _up(supervisor, "w2-1")
        supervisor.pause(paused)
        group.cancel_scope.cancel()
    assert [(run.exit_code, _exists(run.pid)) for run in supervisor.history] == [(-9, False), (-9, False)]
