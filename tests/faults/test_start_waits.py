"""A start waits if the Sentinels have no primary, or the cluster does not serve the slot."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import scene
from tests.support.cluster import started_cluster
from tests.support.processes import Processes
from tests.support.sentinel import NAME, started_setup
from tests.support.waiting import wait_until_here
from workers.protocol.slots import slot_of

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

PAIR = ("--stream", scene.STREAM, "--group", scene.GROUP)


@dataclass
class Unfinished:
    """An address of a service that is not up yet."""

    url: str
    said: str
    finish: Callable[[], None]
    wrong: str = ""
    """An address there of which nobody has heard."""


@contextmanager
def _sentinels(binary: Path) -> Iterator[Unfinished]:
    with started_setup(binary, replicas=0, sentinels=1) as setup:
        node, (sentinel,) = setup.nodes[0], setup.sentinels
        node.stop()

        def is_known_to_be_down() -> bool:
            told = sentinel.command("SENTINEL", "MASTER", NAME)
            return b"s_down" in bytes(dict(zip(told[::2], told[1::2], strict=True))[b"flags"])

        wait_until_here(is_known_to_be_down, "the Sentinel knows that the master is down")
        wrong = setup.url.replace(f"/{NAME}/", "/another/")
        yield Unfinished(setup.url, f"'{NAME}' is down", node.restart, wrong)


@contextmanager
def _cluster(binary: Path) -> Iterator[Unfinished]:
    with started_cluster(binary, masters=1) as cluster:
        (node,) = cluster.nodes
        slots = {slot_of(key.encode()) for key in (scene.STREAM, scene.NAMESPACE.replicas)}
        node.command("CLUSTER", "DELSLOTS", *slots)
        yield Unfinished(
            cluster.url, "no node of the cluster serves slot", lambda: node.command("CLUSTER", "ADDSLOTS", *slots)
        )


@pytest.mark.parametrize("begun", [_sentinels, _cluster])
async def test_programs_begin_once_somebody_serves_them(
    begun: Callable[[Path], Iterator[Unfinished]], binary: Path, processes: Processes
) -> None:
    with begun(binary) as place:  # type: ignore[attr-defined]
        worker = processes.worker("tests.faults.program:worker", *PAIR, "--redis-url", place.url)
        reaper = processes.reaper("--groups", f"{scene.STREAM}/{scene.GROUP}", "--redis-url", place.url)
        for program in (worker, reaper):
            await program.prints(place.said)
        place.finish()
        await worker.prints("worker started")
        await reaper.prints("lease taken")


async def test_what_waits_there_ends_when_it_is_told_and_a_name_that_nobody_knows_ends_a_start(
    binary: Path, processes: Processes
) -> None:
    with _sentinels(binary) as place:
        waiting = processes.worker("tests.faults.program:worker", *PAIR, "--redis-url", place.url)
        wrong = processes.worker("tests.faults.program:worker", *PAIR, "--redis-url", place.wrong)
        await waiting.prints(place.said)
        waiting.terminate()
        assert (await waiting.wait(), await wrong.wait()) == (0, 3)
        assert "no master is called 'another'" in wrong.output
