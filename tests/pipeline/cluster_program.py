"""Reads a lake with Spark somewhere else, and analyses it: run by the cluster tests, as a user's program is."""

import json
import sys
from datetime import UTC, datetime

from reaper.pipeline.analysis.asking import LakeQueries, read_tables
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.spark.session import build_session


def main(lake: str, where: dict[str, str]) -> None:
    """Print what the lake holds, as Spark at ``where`` sees it."""
    with build_session(where.get("master"), where.get("remote"), heap="512m") as session:
        asked = LakeQueries(session, read_tables(session, lake), Scope(datetime.now(UTC)), embedded=False).ask(
            lambda _: None
        )
        jobs, troubled = (
            session.table(view).where("job is not null").select("job").distinct().count()
            for view in ("events", "story")
        )
        print(json.dumps({"events": asked.events, "jobs": jobs, "troubled": troubled}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
