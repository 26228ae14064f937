"""The status page in a real browser. It shows the state, is live, and runs no code from outside."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
import pytest
from redis.asyncio import Redis
from selenium.webdriver.chromium.webdriver import ChromiumDriver as WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.faults.scene import KEYS, STREAM, create_group, strand
from tests.support.browser import started_browser
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.web.conftest import served_replica

pytestmark = [pytest.mark.anyio]

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
_TEXT = "return document.getElementById(arguments[0]).innerText"
ReplyT = TypeVar("ReplyT")


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    with started_browser() as running:
        yield running


class Tab:
    """The page in the browser. The browser blocks, and its server runs in this loop, so it is driven from a thread."""

    def __init__(self, browser: WebDriver, port: int) -> None:
        self.browser = browser
        self.port = port

    async def run(self, function: Callable[[WebDriver], ReplyT]) -> ReplyT:
        return await anyio.to_thread.run_sync(function, self.browser)

    async def open(self, verdict: str = "Healthy") -> None:
        await self.run(lambda browser: browser.get(f"http://127.0.0.1:{self.port}/"))
        await self.shows("verdict", verdict)

    async def text(self, element: str) -> str:
        return await self.run(lambda browser: browser.execute_script(_TEXT, element))

    async def shows(self, element: str, wanted: str) -> None:
        async def shown() -> bool:
            return wanted in await self.text(element)

        await wait_until(shown, f"#{element} shows {wanted!r}")

    async def js(self, expression: str) -> Any:
        return await self.run(lambda browser: browser.execute_script(f"return {expression}"))

    async def type(self, element: str, words: str) -> None:
        await self.run(lambda browser: browser.find_element(By.ID, element).send_keys(words))

    async def complaints(self) -> list[str]:
        """The messages of the browser's console, which are errors of scripts, and violations of the security policy."""
        entries = await self.run(lambda browser: browser.get_log("browser"))  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]


async def _lived(client: Redis) -> None:
    """Make stalled jobs, of which one has a hostile ID, and a dead letter."""
    for name in ("order-4711", "order-4712", "order-4713", HOSTILE):
        await client.xadd(STREAM, {"amount": "12.50", "reaper.job": name})
    await strand(client, 4, "shop-7f2a~0123456789ab", overdue=True)
    await client.xadd(KEYS.dead, {"reaper.job": "order-1", "reaper.dead.reason": "max_deliveries"})


@pytest.fixture
async def tab(browser: WebDriver, server: RedisServer, client: Redis) -> AsyncIterator[Tab]:
    """The page of a replica that recovers jobs."""
    await create_group(client)
    await _lived(client)
    async with served_replica(server.url) as served:
        page = Tab(browser, served.port)
        await page.open()
        yield page
        await page.run(lambda one: one.get("about:blank"))


async def test_one_page_shows_replicas_groups_and_commands(tab: Tab) -> None:
    await tab.shows("group-table", "orders/billing")
    await tab.shows("commands", "reaper dead-letters list orders/billing")
    await tab.shows("replicas", "1 of 1")
    await tab.shows("group-table", "token 1, ")
    assert await tab.complaints() == []


async def test_nothing_from_outside_becomes_markup(tab: Tab) -> None:
    await tab.type("job", HOSTILE + Keys.ENTER)
    await tab.shows("job-told", "onerror=")
    assert await tab.js("window.pwned") is None
    assert await tab.js("document.querySelectorAll('img').length") == 0
    assert await tab.js("document.querySelectorAll('script').length") == 1


async def test_the_policy_stops_scripts_that_got_in_all_the_same(tab: Tab) -> None:
    await tab.js("document.body.insertAdjacentHTML('beforeend', '<img src=\"data:,\" onerror=\"window.pwned=1\">')")

    async def stopped() -> bool:
        return any("Content Security Policy" in complaint for complaint in await tab.complaints())

    await wait_until(stopped, "the browser says that it stopped it")
    assert await tab.js("window.pwned") is None


async def test_a_job_tells_its_story(tab: Tab, client: Redis) -> None:
    await wait_until(partial(client.exists, KEYS.journal), "the jobs are recovered")
    await tab.type("job", "order-4712" + Keys.ENTER)
    await tab.shows("job-told", "a worker reads it: 4 jobs are ready")
    told = await tab.text("job-told")
    assert "recovered" in told
    assert "orders/billing: order-4712 ready" in told


async def test_it_is_live(tab: Tab, client: Redis) -> None:
    await client.hset(KEYS.settings, "paused", "1")
    await tab.shows("verdict", "orders/billing: recovery is paused")
    await tab.shows("commands", "reaper groups resume orders/billing")


async def test_it_says_when_it_is_not_live_any_more(browser: WebDriver, server: RedisServer, client: Redis) -> None:
    await create_group(client)
    async with served_replica(server.url) as served:
        page = Tab(browser, served.port)
        await page.open()
    await page.shows("verdict", "No contact")
    await page.shows("verdict", "This replica does not answer.")


async def test_everything_has_a_name_for_those_who_do_not_see_it(tab: Tab) -> None:
    await tab.shows("group-table", "orders/billing")
    assert await tab.js("document.querySelectorAll('table:not(:has(caption))').length") == 0
    assert await tab.js("[...document.querySelectorAll('th')].filter((th) => !th.scope).length") == 0
    assert await tab.js("[...document.querySelectorAll('section')].filter((s) => !s.ariaLive && "
                        "!s.getAttribute('aria-labelledby')).length") == 0  # fmt: skip
    assert await tab.js("[...document.querySelectorAll('input')].filter((i) => !i.labels.length).length") == 0
    assert await tab.js("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_can_be_read_in_both_colour_schemes(tab: Tab, scheme: str) -> None:
    """WCAG AA demands 4.5 to 1 between text and background."""
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    await tab.run(lambda browser: browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features))
    await tab.shows("group-table", "orders/billing")
    assert await tab.js(CONTRASTS) == []
    await tab.run(lambda browser: browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []}))


CONTRASTS = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (c) => c / 255 <= .03928 ? c / 255 / 12.92 : ((c / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgba(getComputedStyle(node).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll('main *, header *')) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!hasText || !node.checkVisibility()) continue;
    const [a, b] = [light(rgba(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push([node.textContent.slice(0, 30), ratio]);
  }
  return poor;
})()"""
