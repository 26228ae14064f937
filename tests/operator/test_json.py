"""`docs/json.md` shows the output of every command with ``-o json``, and the tests compare it."""

from typing import Any

import pytest

from tests.docs.json_page import check, examples
from tests.operator.conftest import run_command
from tests.operator.dead import give_up
from tests.operator.every import ASKING, KEYS, LEAVES, PAIR
from tests.operator.heartbeats import a_report, hold
from tests.scripts.scene import Scene
from tests.support.processes import ROOT
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

LETTER = "LETTER"
WORDS: dict[str, tuple[str, ...]] = ASKING | {
    "reaper acl": PAIR,
    "reaper dead-letters list": (KEYS.name,),
    "reaper dead-letters show": (KEYS.name, LETTER),
    "reaper drain": ("alice-1-abc", "--timeout", "0"),
    "reaper groups forget": ("mail/sender", "--yes"),
    "reaper groups requeue": (KEYS.name, "1-0"),
    "reaper watch remove": ("mail/sender",),
}
ELSEWHERE = {
    "reaper compare": "tests/pipeline/test_compare.py",
    "reaper demo": "tests/drill/test_cli.py",
    "reaper drill": "tests/drill/test_cli.py",
    "reaper pipeline advise": "tests/pipeline/test_advisor.py",
    "reaper pipeline ingest": "tests/pipeline/test_cli.py",
    "reaper pipeline report": "tests/pipeline/test_report.py",
    "reaper pipeline trim": "tests/pipeline/test_cli.py",
}
"""Where commands that take long are run anyhow, and their output is compared."""
WHERE_IT_FAILS = "Where a command fails"


def test_every_command_that_prints_json_is_on_the_page_and_compared() -> None:
    speaking = {name for name, one in LEAVES if any(parameter.name == "machine" for parameter in one.params)}
    assert examples().keys() - {WHERE_IT_FAILS} == speaking
    assert WORDS.keys() | ELSEWHERE.keys() == speaking
    for name, file in ELSEWHERE.items():
        assert f'check("{name}"' in (ROOT / file).read_text(encoding="utf-8"), f"{file} compares {name}"


async def printed(scene: Scene, server: RedisServer, name: str) -> Any:
    """Return what a command prints of a service with some troubles."""
    now = await scene.now_ms()
    await scene.set_settings(policy="stream", visibility_ms=30_000, max_deliveries=3, recovery="reaper")
    report = a_report(last_scan_ms=now - 200, timers=1, recovered=5)
    await hold(scene.client, report, now_ms=now, server="Redis 8.2.3")
    letter = await give_up(scene, "order", 17)
    await scene.stalled("order", 18, "reaper.job", "order-17")
    await scene.client.xgroup_create("mail", "sender", "0", mkstream=True)
    await scene.client.hset("{mail}:group:sender", "paused", "1")
    await scene.client.hset("{reaper}:watched", mapping={"mail/sender": "mail*/sender"})
    words = [letter if word == LETTER else word for word in WORDS[name]]
    return (await run_command(server.url, *name.split()[1:], *words, "-o", "json")).data


@pytest.mark.parametrize("name", WORDS)
async def test_what_a_command_prints_is_what_the_page_shows(scene: Scene, server: RedisServer, name: str) -> None:
    check(name, await printed(scene, server, name))
