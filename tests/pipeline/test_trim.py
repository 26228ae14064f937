"""Journals are trimmed behind what is safely in the lake, and not a step further."""

import json
import os
import runpy
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reaper.pipeline.lake.layout import TABLES, Layout
from reaper.pipeline.lake.store import replace_text
from reaper.pipeline.lake.tables import create_tables
from reaper.pipeline.lake.trim import RIGHTS, ingested_ends, threshold, trim
from reaper.pipeline.settings import PipelineSettings
from tests.pipeline.journals import DEAD, JOURNAL, connect, write_dead_letter, write_events
from tests.pipeline.lakes import open_table
from tests.support.processes import ROOT
from tests.support.servers import RedisServer
from workers.protocol.address import shown_address
from workers.protocol.errors import ConfigurationError, UnreachableError

pytestmark = pytest.mark.anyio
NODE = 100
"""Entries that Redis keeps together: it trims by the node."""
NO_MARGIN = PipelineSettings(trim_margin=timedelta(0))


@pytest.fixture
def layout(tmp_path: Path, server: RedisServer) -> Layout:
    """A lake that is filled from `server`."""
    made = Layout.of(tmp_path)
    create_tables(made)
    replace_text(made.source, json.dumps({"redis": server.url}))
    return made


def note(layout: Layout, batch: int, offset: dict[str, Any], *, committed: bool = True) -> None:
    """Write down a batch as Spark does."""
    for folder in ("offsets", "commits"):
        (layout.checkpoint / folder).mkdir(parents=True, exist_ok=True)
    (layout.checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    for table in TABLES:
        open_table(layout, table).publish([], checkpoint=layout.name(), batch=batch, fence=0)
    if committed:
        (layout.checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def ids(server: RedisServer, stream: str = JOURNAL) -> list[str]:
    with connect(server) as client:
        return [entry.decode() for entry, _ in client.xrange(stream)]


def test_what_is_kept_is_behind_the_last_ingested_entry_and_younger_than_the_margin() -> None:
    hour = timedelta(hours=1)
    assert threshold((10_000_000, 5), 20_000_000, timedelta(0)) == (10_000_000, 5)
    assert threshold((10_000_000, 5), 10_000_000, hour) == (6_400_000, 0)
    assert threshold((10, 5), 1_000, hour) == (0, 0)


async def test_journals_are_trimmed_up_to_the_newest_committed_batch(layout: Layout, server: RedisServer) -> None:
    write_events(server, 1000)
    write_dead_letter(server, "job-1")
    entries = ids(server)
    dead = ids(server, DEAD)
    note(layout, 0, {JOURNAL: {"id": entries[499]}, DEAD: {"id": dead[0]}})
    note(layout, 1, {JOURNAL: {"id": entries[999]}, DEAD: {"id": dead[0]}}, committed=False)

    (done,) = await trim(NO_MARGIN, layout, url=server.url)
    left = ids(server)
    assert (done.stream, done.removed, done.left) == (JOURNAL, 1000 - len(left), len(left))
    assert entries[499:] == left[-501:]
    assert 0 <= len(left) - 501 < NODE
    assert ids(server, DEAD) == dead


async def test_dead_letters_are_trimmed_only_when_asked_to(layout: Layout, server: RedisServer) -> None:
    # Its group is named journal, so the pattern of journals fits it, too.
    stream = "{orders}:dead:journal"
    for job in range(250):
        write_dead_letter(server, f"job-{job}", stream)
    note(layout, 0, {stream: {"id": ids(server, stream)[-1]}})
    assert await trim(NO_MARGIN, layout, url=server.url) == []
    (done,) = await trim(NO_MARGIN, layout, url=server.url, dead_letters=True)
    assert done.removed == 250 - done.left >= 250 - 1 - NODE


async def test_what_is_younger_than_the_margin_stays(layout: Layout, server: RedisServer) -> None:
    write_events(server, 500)
    note(layout, 0, {JOURNAL: {"id": ids(server)[-1]}})
    (done,) = await trim(PipelineSettings(trim_margin=timedelta(minutes=10)), layout, url=server.url)
    assert (done.removed, done.left) == (0, 500)


async def test_a_stream_that_is_another_one_now_is_left_alone(layout: Layout, server: RedisServer) -> None:
    write_events(server, 5)
    note(layout, 0, {JOURNAL: {"id": "99999999999999-0"}, "gone:journal": {"id": "5-0"}})
    gone, done = await trim(NO_MARGIN, layout, url=server.url)
    assert (gone.stream, gone.kept_because) == ("gone:journal", "it is gone")
    assert (done.removed, done.left, done.kept_because) == (
        0,
        5,
        "it is not the stream that was ingested: it ends before",
    )


async def test_the_user_of_ingestion_is_told_what_else_it_needs_and_that_is_enough(
    layout: Layout, server: RedisServer
) -> None:
    write_events(server, 1000)
    note(layout, 0, {JOURNAL: {"id": ids(server)[-1]}})
    url = server.url.replace("redis://", "redis://pipeline:pw@")
    replace_text(layout.source, json.dumps({"redis": shown_address(url)}))
    of_ingestion = runpy.run_path(str(ROOT / "deploy/redis/make_users.py"))["PIPELINE_COMMANDS"]
    with connect(server) as admin:
        admin.execute_command("ACL", "SETUSER", "pipeline", "on", ">pw", f"~{JOURNAL}", "-@all", *of_ingestion)
        with pytest.raises(UnreachableError, match=r"\(trim needs \+time \+xlen \+xtrim in addition"):
            await trim(NO_MARGIN, layout, url=url)
        admin.execute_command("ACL", "SETUSER", "pipeline", *RIGHTS)
    (done,) = await trim(NO_MARGIN, layout, url=url)
    assert done.removed > 1000 - 2 * NODE


async def test_nothing_is_trimmed_where_the_lake_was_not_filled_from(layout: Layout) -> None:
    with pytest.raises(ConfigurationError, match="no batch of the lake"):
        ingested_ends(layout)
    note(layout, 0, {JOURNAL: {"id": "5-0"}})
    with pytest.raises(ConfigurationError, match=r"is filled from redis://.*, not from redis://elsewhere"):
        await trim(NO_MARGIN, layout, url="redis://elsewhere:6379/0")


def test_a_full_disk_behind_standard_output_is_not_the_lakes(layout: Layout, server: RedisServer) -> None:
    note(layout, 0, {})
    words = ["pipeline", "trim", "--lake", layout.root, "--redis-url", server.url]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "reaper", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=buffered, check=False)
    told = b"error: cannot read or write: No space left on device.\n"
    assert (done.returncode, done.stderr) == (2, told)
