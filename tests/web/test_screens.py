"""How the page looks: in light and dark, on a phone, with many groups and long names. The pictures are kept for people.

They lie in the test's folder, or in the one that STREAM_REAPER_SCREENS names.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from selenium.webdriver.chromium.webdriver import ChromiumDriver as WebDriver

from tests.faults.scene import create_group, strand
from tests.support.browser import started_browser
from tests.support.servers import RedisServer
from tests.web.conftest import served_replica
from tests.web.test_page import Tab
from workers.protocol.keys import GroupKeys, group_keys

pytestmark = [pytest.mark.anyio, pytest.mark.matrix]

PHONE, DESK = (390, 844), (1280, 1500)
LONG = "a-payments-reconciliation-of-forty-six-letters"
"""A name as long as they come where people name things after what they do."""
TOO_WIDE = """return [...document.querySelectorAll('body *')]
  .filter((one) => one.checkVisibility() && !one.closest('svg, caption, thead, .skip'))
  .filter((one) => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map((one) => `${one.tagName}: ${one.textContent.slice(0, 60)}`)"""
SCROLLED = """return [...document.querySelectorAll('.scroll')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.id)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    with started_browser() as running:
        yield running


async def _dead_letters(client: Redis, keys: GroupKeys) -> None:
    end = {"stream": keys.stream, "group": keys.group, "reason": "max_deliveries", "error": "not settled in time"}
    known: dict[Any, Any] = {f"reaper.dead.{name}": value for name, value in end.items()}
    for number in range(3):
        payload: dict[Any, Any] = {"amount": "12.50", "raw": b"\x89PNG\r\n\x1a\n", "reaper.job": f"{LONG}-{number}"}
        await client.xadd(keys.dead, {**payload, **known})


@pytest.fixture
async def busy(server: RedisServer, client: Redis) -> AsyncIterator[int]:
    """The page of a service in trouble, with long names: its port."""
    keys = group_keys(LONG, "billing")
    await create_group(client)
    await client.xgroup_create(keys.stream, keys.group, "0", mkstream=True)
    for number in range(6):
        await client.xadd("orders", {"amount": "1", "reaper.job": f"{LONG}-{number}"})
    await strand(client, 6, f"{LONG}~0123456789ab", overdue=True)
    await _dead_letters(client, group_keys("orders", "billing"))
    await client.hset(keys.settings, "paused", "1")
    groups = [{"stream": "orders", "group": "billing"}, {"stream": keys.stream, "group": keys.group}]
    async with served_replica(server.url, groups=groups) as served:
        yield served.port


@pytest.fixture
async def many(server: RedisServer, client: Redis) -> AsyncIterator[int]:
    """The page of fifty groups on a server that has just started."""
    await create_group(client)
    names = [f"stream-{number:02}" for number in range(49)]
    for name in names:
        await client.xgroup_create(name, "billing", "0", mkstream=True)
    groups = [{"stream": "orders", "group": "billing"}, *({"stream": name, "group": "billing"} for name in names)]
    async with served_replica(server.url, groups=groups) as served:
        yield served.port


async def _sized(tab: Tab, size: tuple[int, int], scheme: str = "light") -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    await tab.run(lambda browser: browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics))
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    await tab.run(lambda browser: browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features))


async def _shoot(tab: Tab, name: str, tmp_path: Path) -> None:
    """Take a picture of the whole page."""
    folder = Path(os.environ.get("STREAM_REAPER_SCREENS", str(tmp_path)))
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    height = int(await tab.js("document.documentElement.scrollHeight"))
    width = int(await tab.js("window.innerWidth"))
    await _resized(tab, width, height)
    await tab.run(lambda browser: browser.save_screenshot(str(folder / f"{name}.png")))
    assert (folder / f"{name}.png").stat().st_size > 10_000


async def _resized(tab: Tab, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    await tab.run(lambda browser: browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics))


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("light", DESK, "light"), ("dark", DESK, "dark"), ("phone", PHONE, "light"), ("phone-dark", PHONE, "dark")],
)
async def test_nothing_is_wider_than_the_screen(
    browser: WebDriver, busy: int, tmp_path: Path, name: str, size: tuple[int, int], scheme: str
) -> None:
    tab = Tab(browser, busy)
    await _sized(tab, size, scheme)
    await tab.open("Degraded")
    await tab.shows("group-table", LONG)
    await _shoot(tab, name, tmp_path)
    assert await tab.run(lambda one: one.execute_script(TOO_WIDE)) == []
    assert await tab.run(lambda one: one.execute_script(SCROLLED)) == []
