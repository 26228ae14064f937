"""`reaper groups requeue`: its input from the journal, and its output."""

from typing import Any

import pytest

from tests.operator.conftest import Command
from tests.scripts.scene import Scene
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

BILLING = "orders/billing"


async def lost(scene: Scene, *, source: str = "stream", group: str = "billing") -> str:
    """Add an entry whose delivery is lost, and reported in the journal."""
    stream = scene.keys.stream if source == "stream" else scene.keys.retry
    entry = await scene.add(stream=stream)
    await scene.deliver(entry, stream=stream)
    await scene.client.execute_command("XACK", stream, scene.keys.group, entry)
    await journal(scene, "lost_delivery", entry, source=source, group=group)
    return entry


async def journal(scene: Scene, event: str, entry: str, **data: str) -> None:
    """Write an event as a reaper or a worker does."""
    fields: dict[Any, Any] = {"event": event, "group": "billing", "entry": entry} | data
    await scene.client.xadd(scene.keys.journal, fields)


async def outcomes(reaper: Command, *words: str) -> dict[str, str]:
    """Run the command; return the outcomes by entry ID."""
    answer = await reaper("groups", "requeue", BILLING, *words, "-o", "json")
    return {result["id"]: result["outcome"] for result in answer.data["results"]}


async def test_lost_deliveries_are_given_back_once(scene: Scene, reaper: Command) -> None:
    await scene.client.xgroup_create(scene.keys.retry, "billing", "0", mkstream=True)
    one, other = await lost(scene), await lost(scene, source="retry")
    await scene.set_settings(lost_delivery=2, lost_delivery_ms=1)
    assert await outcomes(reaper, "--lost", "--dry-run") == {one: "done", other: "done"}
    assert await outcomes(reaper, "--lost") == {one: "done", other: "done"}
    assert await outcomes(reaper, "--lost") == {}
    assert not await scene.client.hexists(scene.keys.settings, "lost_delivery")
    assert await scene.client.xlen("orders") == 2


async def test_a_command_that_fails_at_its_end_prints_one_document(
    scene: Scene, reaper: Command, server: RedisServer
) -> None:
    await lost(scene)
    await scene.client.execute_command("ACL", "SETUSER", "careful", "on", ">pw", "~*", "&*", "+@all", "-hdel")
    address = f"redis://careful:pw@127.0.0.1:{server.port}/0"
    answer = await reaper("groups", "requeue", BILLING, "--lost", "-o", "json", REAPER_REDIS_URL=address)
    assert (answer.code, answer.data["status"], "hdel" in answer.data["error"]) == (3, "unreachable", True)


@pytest.mark.parametrize("event", ["acked", "dead_lettered", "recovered", "requeued"])
async def test_what_ended_since_is_left_alone(scene: Scene, reaper: Command, event: str) -> None:
    entry = await lost(scene)
    await journal(scene, event, entry)
    assert await outcomes(reaper, "--lost") == {}
    assert await outcomes(reaper, entry) == {entry: "settled"}
    await journal(scene, "lost_delivery", entry, source="stream")  # once more
    assert await outcomes(reaper, "--lost") == {entry: "done"}


async def test_other_groups_have_a_journal_in_common_and_their_own_losses(scene: Scene, reaper: Command) -> None:
    await lost(scene, group="shipping")
    entry = await lost(scene)
    await journal(scene, "acked", entry, group="shipping")
    assert await outcomes(reaper, "--lost") == {entry: "done"}


async def test_losses_of_long_ago_are_left_alone(scene: Scene, reaper: Command) -> None:
    await lost(scene)
    assert await outcomes(reaper, "--lost", "--since", "0s") == {}


async def test_an_entry_is_named_by_its_id_in_either_stream(scene: Scene, reaper: Command) -> None:
    await scene.client.xgroup_create(scene.keys.retry, "billing", "0", mkstream=True)
    one, other = await lost(scene), await lost(scene, source="retry")
    answer = await reaper("groups", "requeue", BILLING, one, other, "9-9")
    lines = answer.out.splitlines()
    assert answer.code == 1
    assert [line.split()[0] for line in lines[:-1]] == [one, other, "9-9"]
    assert lines[0].startswith(f"{one}  job {one}  requeued as ")
    assert lines[2] == "9-9  skipped: it does not exist"
    assert lines[3] == "orders/billing: 2 deliveries requeued, 1 missing"


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("words", [(), ("1-0", "--lost")])
async def test_either_ids_or_lost(reaper: Command, words: tuple[str, ...]) -> None:
    answer = await reaper("groups", "requeue", BILLING, *words)
    assert answer.code == 2
    assert "either entry IDs or --lost" in answer.err


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(
    ("words", "why"), [(("order-1",), "'order-1' is not an entry ID"), (("--lost", "--since", "soon"), "'soon' is not")]
)
async def test_what_cannot_be_read_is_named(reaper: Command, words: tuple[str, ...], why: str) -> None:
    answer = await reaper("groups", "requeue", BILLING, *words)
    assert answer.code == 2
    assert why in answer.err
