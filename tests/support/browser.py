"""A real browser without a window: Debian's chromium, driven by selenium.

No package index has a browser, so tests that need one are skipped without it, except in continuous integration.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chromium.webdriver import ChromiumDriver as WebDriver

from tests.support.patience import PATIENCE_S, scaled

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1500",
)  # fmt: skip


@contextmanager
def started_browser() -> Iterator[WebDriver]:
    """Run a browser until the block ends. Skips where there is none; raises RuntimeError instead where CI is set."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not program or not driver:
        missing = "no browser: apt-get install -y chromium chromium-driver"
        if os.environ.get("CI"):
            raise RuntimeError(missing)
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="stream-reaper-browser-", ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = webdriver.Chrome(options=options, service=Service(driver))
        browser.set_page_load_timeout(scaled(PATIENCE_S))
        browser.set_script_timeout(scaled(PATIENCE_S))
        try:
            yield browser
        finally:
            browser.quit()
