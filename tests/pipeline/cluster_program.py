"""Reads a lake with Spark somewhere else, and analyses it: run by the cluster tests, as a user's program is."""

import json
import sys

from pyspark.sql import functions as F

from reaper.pipeline.analysis.histories import histories, troubled_jobs
from reaper.pipeline.lake.tables import read_events
from reaper.pipeline.spark.session import build_session


def main(lake: str, where: dict[str, str]) -> None:
    """Print what the lake holds, as Spark at ``where`` sees it."""
    with build_session(where.get("master"), where.get("remote"), heap="512m") as session:
        events = read_events(session, lake)
        total, jobs = events.agg(F.count("*"), F.countDistinct("job")).first() or (0, 0)
        troubled = histories(events, troubled_jobs(events)).select("job").distinct().count()
        print(json.dumps({"events": total, "jobs": jobs, "troubled": troubled}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
