"""Does what the pipeline does, once, on a small lake: the program after which Java keeps its classes.

``python -m reaper.pipeline.rehearsal.rehearsal FOLDER FILE``: see `reaper.pipeline.spark.class_cache`.
"""

import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from reaper.pipeline.rehearsal.synthetic import generate_lake
from reaper.pipeline.report.command import JAVA_OPTIONS
from reaper.pipeline.report.reading import read_report, tune
from reaper.pipeline.report.scope import Scope
from reaper.pipeline.spark.class_cache import recording_classes
from reaper.pipeline.spark.session import build_session

EVENTS = 50_000
_MASTER = "local[2]"


def rehearse(folder: Path, classes: Path) -> None:
    """Generate a lake in ``folder`` and report on it; at the end, Java makes the file ``classes``."""
    options = f"{JAVA_OPTIONS} {recording_classes(classes)}"
    spark = build_session(_MASTER, app="stream-reaper rehearsal", java_options=options, class_cache=False)
    lake = str(folder / "lake")
    generate_lake(spark, lake, events=EVENTS)
    tune(spark, embedded=True)
    read_report(spark, lake, Scope(), datetime.now(UTC), lambda _: None)
    spark.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a word, and so that Java ends, too
    rehearse(*map(Path, sys.argv[1:]))
