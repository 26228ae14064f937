"""The pages in a real browser: on a phone, on a desk, and on paper."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.chromium.webdriver import ChromiumDriver as WebDriver

from reaper.pipeline.compare.findings import conclude
from reaper.pipeline.compare.page import write_page as write_comparison
from reaper.pipeline.compare.play import Drills, Plan
from reaper.pipeline.compare.scenarios import SCENARIOS
from reaper.pipeline.report.page import write_page
from tests.pipeline.test_compare_verdict import played
from tests.pipeline.test_report_page import many_findings
from tests.support.browser import started_browser

PHONE, DESK, PAPER = 390, 1_100, 690
"""Widths in CSS pixels; paper is A4 or letter between its margins."""
PAGES = ("report", "comparison")
LONG = "customer-notifications/sender-for-germany"

_BEYOND = """
return [...document.querySelectorAll('body *')]
  .filter(e => !e.closest('svg *') && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => `${e.tagName} ${e.textContent.slice(0, 40)}`)
"""
_SCROLLING = """
return [...document.querySelectorAll('body *')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth && getComputedStyle(e).overflowX != 'visible')
  .map(e => `${e.className} ${e.clientWidth} < ${e.scrollWidth}`)
"""
_LETTERS = "return [...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
_OVERLAPPING = """
return [...document.querySelectorAll('svg')].flatMap(svg => {
  const words = [...svg.querySelectorAll('text')].map(e => [e.textContent, e.getBoundingClientRect()]);
  return words.flatMap(([a, one], n) => words.slice(n + 1)
    .filter(([, two]) => one.left + 2 < two.right && two.left + 2 < one.right)
    .filter(([, two]) => one.top + 2 < two.bottom && two.top + 2 < one.bottom)
    .map(([b]) => `${a} over ${b}`));
})
"""
_CUT = """
return [...document.querySelectorAll('svg text')]
  .filter(e => e.getBoundingClientRect().right > e.closest('svg').getBoundingClientRect().right + 1)
  .map(e => e.textContent)
"""
_LINES = """
return [...document.querySelectorAll('td')].filter(e => e.textContent == arguments[0])
  .map(e => { const range = document.createRange(); range.selectNodeContents(e);
              return new Set([...range.getClientRects()].map(r => Math.round(r.top))).size })
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    with started_browser() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages with much on them, and with long names."""
    folder = tmp_path_factory.mktemp("pages")
    findings = many_findings()
    stream, group = LONG.split("/")
    for rows in findings.tables.values():
        rows[:] = [
            {**row, "stream": f"{{{stream}}}:journal", "group": group} if "group" in row else row for row in rows
        ]
    advised = {"executions": 346_343, "longest_ms": 301_800, "in_force_ms": 30_000, "timeout_ms": 60_000,
               "verdict": "timeout too short", "why": "many words " * 30}  # fmt: skip
    names = (LONG, "mail/sender")
    findings.advice = {
        "promise": {"pause_ms": 5_000, "one_in": 1_000},
        "groups": [advised | {"group": name} for name in names],
    }
    (folder / "report.html").write_text(write_page(findings))
    scenarios = list(SCENARIOS.values())
    modes = ("reaper/stream", "embedded", "none")
    narrow = {"p50": 1.8, "p99": 3.3, "max": 3.3}  # less than a decade: an axis has to find its ticks in between
    drills = [played(mode, scenario=scenario, recovery_s=narrow) for scenario in scenarios for mode in modes]
    comparison = conclude(Drills(Plan(scenarios, modes, 1), drills), "2026-11-20T16:00:00+00:00")
    (folder / "comparison.html").write_text(write_comparison(comparison))
    return folder


def show(browser: WebDriver, folder: Path, page: str, width: int, *, printed: bool = False) -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print" if printed else "screen"})
    browser.get((folder / f"{page}.html").as_uri())


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "printed"), [(PHONE, False), (DESK, False), (PAPER, True)])
def test_nothing_is_cut_off_and_nothing_has_to_be_scrolled_aside(
    browser: WebDriver, folder: Path, page: str, width: int, *, printed: bool
) -> None:
    show(browser, folder, page, width, printed=printed)
    assert browser.execute_script(_BEYOND) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(_SCROLLING) == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_letters_of_charts_are_legible(browser: WebDriver, folder: Path, page: str, width: int) -> None:
    show(browser, folder, page, width)
    heights = browser.execute_script(_LETTERS)
    assert len(heights) > 10
    assert min(heights) >= 9


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_words_of_charts_are_whole_and_do_not_overlap(browser: WebDriver, folder: Path, page: str, width: int) -> None:
    show(browser, folder, page, width)
    assert browser.execute_script(_OVERLAPPING) == []
    assert browser.execute_script(_CUT) == []


@pytest.mark.parametrize("page", PAGES)
def test_no_axis_shows_latex(folder: Path, page: str) -> None:
    text = (folder / f"{page}.html").read_text()
    assert "mathdefault" not in text
    assert "\\times" not in text


@pytest.mark.parametrize(("width", "printed"), [(PHONE, False), (DESK, False), (PAPER, True)])
def test_the_name_of_a_group_breaks_at_its_separators_only(
    browser: WebDriver, folder: Path, width: int, *, printed: bool
) -> None:
    show(browser, folder, "report", width, printed=printed)
    found = browser.execute_script(_LINES, LONG)
    assert found
    assert max(found) <= 2
    for short in ("mail/sender", "recovered"):
        assert set(browser.execute_script(_LINES, short)) == {1}


@pytest.mark.parametrize("page", PAGES)
def test_sections_longer_than_a_sheet_begin_where_the_last_one_ends(
    browser: WebDriver, folder: Path, page: str
) -> None:
    """A section that may not be divided begins on a sheet of its own, and leaves the one before it empty."""
    show(browser, folder, page, PAPER, printed=True)
    assert set(
        browser.execute_script(
            "return [...document.querySelectorAll('section, .table, table')].map(e => getComputedStyle(e).breakInside)"
        )
    ) == {"auto"}
