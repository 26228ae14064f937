"""Takes the picture of the report for the documentation: ``python -m tests.pipeline.picture``.

A drill with real crashes fills the journals of a server. The pipeline brings them into a lake and reports on it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.browser import started_browser
from tests.support.processes import ROOT
from tests.support.servers import started_server

FILE = ROOT / "docs/images/report.png"
WIDTH, HEIGHT = 1280, 1500


def _reaper(*words: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "reaper", *words], cwd=folder, check=True)


def main() -> None:
    """Play the drill, report on it, and take the picture."""
    with tempfile.TemporaryDirectory(prefix="stream-reaper-picture-") as name, started_server() as server:
        folder = Path(name)
        to = ("--redis-url", server.url)
        faults = ("--fault", "kill-worker@2", "--fault", "poison@3", "--fault", "kill-holder@5")
        _reaper("drill", *to, "--keep-keys", "--limit", "400", "--quiet", *faults, folder=folder)
        _reaper("pipeline", "ingest", *to, "--lake", "lake", "--available-now", folder=folder)
        _reaper("pipeline", "report", *to, "--lake", "lake", "--output", "report.html", folder=folder)
        with started_browser() as browser:
            browser.set_window_size(WIDTH, HEIGHT)
            browser.get((folder / "report.html").as_uri())
            browser.save_screenshot(str(FILE))


if __name__ == "__main__":
    main()
