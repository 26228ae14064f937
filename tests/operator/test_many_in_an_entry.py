"""A journal in which some entries tell of one job and some of many: every question is answered from both."""

from itertools import chain

import pytest

from reaper.operations.job_search import Place, find_job
from reaper.recovery.lost import settled_in
from tests.scripts.scene import Scene
from workers.protocol.events import event_fields

pytestmark = pytest.mark.anyio

GROUP = {"group": "billing", "consumer": "w1"}


async def _one(scene: Scene, event: str, job: str, **facts: object) -> None:
    words = event_fields(event, **GROUP, entry=job, **facts)
    await scene.client.execute_command("XADD", scene.keys.journal, "*", *words)


async def _many(scene: Scene, *entries: str, **columns: list[object]) -> None:
    told = {name: ",".join("" if value is None else str(value) for value in values) for name, values in columns.items()}
    fields = {"event": "acked"} | GROUP | {"entry": ",".join(entries)} | told
    await scene.client.execute_command("XADD", scene.keys.journal, "*", *chain.from_iterable(fields.items()))


async def _both(scene: Scene) -> None:
    await _one(scene, "recovered", "5-1", new_entry="7-1", idle_ms=9, visibility_ms=5)
    await _many(scene, "5-0", "7-1", "5-2", job=[None, "5-1", None], run_ms=[10, 20, 30])
    await _one(scene, "acked", "5-3", run_ms=40)


@pytest.mark.parametrize(
    ("wanted", "job", "events"),
    [
        ("5-0", "5-0", ["acked"]),
        ("5-1", "5-1", ["recovered", "acked"]),
        ("7-1", "5-1", ["recovered", "acked"]),
        ("5-3", "5-3", ["acked"]),
    ],
)
async def test_a_job_is_found_in_either_by_its_id_and_by_its_entries(
    scene: Scene, wanted: str, job: str, events: list[str]
) -> None:
    await _both(scene)
    found = await find_job(scene.client, scene.keys, wanted)
    assert (found.job_id, [event.event for event in found.events], found.place) == (job, events, Place.SETTLED)


@pytest.mark.parametrize(
    ("group", "rejected", "settled"),
    [("billing", b"", ["5-0", "5-2"]), ("billing", b"0", ["5-2"]), ("shipping", b"", [])],
)
def test_a_leader_finds_what_its_group_has_settled(group: str, rejected: bytes, settled: list[str]) -> None:
    """All groups of a stream share the journal."""
    told = [b"event", b"acked", b"group", b"billing", b"entry", b"5-0,5-1,5-2", b"rejected", rejected]
    found = settled_in(b"9-0", told, {b"5-0", b"5-2", b"5-9"}, group)
    assert [entry.decode() for entry in found] == settled


@pytest.mark.parametrize(
    ("event", "facts", "is_settled"),
    [
        ("acked", {}, True),
        ("dead_lettered", {"dead_letter": "6-0"}, True),
        ("nacked", {"new_entry": "6-0"}, True),
        ("nacked", {"due_ms": 9}, True),  # a waiting job, packed in the schedule
        ("nacked", {"new_entry": "5-0"}, False),  # given back where it is: it is pending there
        ("recovered", {"new_entry": "6-0"}, True),
        ("quarantined", {}, True),
        ("extended", {}, False),
        ("lost_delivery", {}, False),
    ],
)
def test_an_entry_that_was_settled_is_not_lost(event: str, facts: dict[str, object], is_settled: bool) -> None:
    flat = [str(word).encode() for word in event_fields(event, group="billing", entry="5-0", **facts)]
    assert list(settled_in(b"9-0", flat, {b"5-0", b"5-1"}, "billing")) == ([b"5-0"] if is_settled else [])
