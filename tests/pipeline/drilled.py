"""A real drill's journals: taken down while it runs, since a drill leaves nothing in a Redis that is not its own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from reaper.pipeline.lake.parse import parse
from reaper.pipeline.lake.schema import TABLES
from tests.pipeline.streams import connected, read_all
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer

FAULTS = ("kill-worker@0.5", "poison@0.8", "kill-holder@1.5")
Entry = tuple[bytes, Sequence[bytes]]


@dataclass(frozen=True)
class Drilled:
    """The result of a drill: raw entries by journal, and its own report."""

    journals: dict[str, list[Entry]]
    report: Any


async def take_down(server: RedisServer, folder: Path) -> Drilled:
    """Run a short drill on ``server``, and put its journals back when it has ended."""
    processes = Processes(folder)
    file = folder / "drill.json"
    faults = [word for fault in FAULTS for word in ("--fault", fault)]
    options = ("--redis-url", server.url, "--limit", "150", *faults, "--output", str(file))
    try:
        drill = processes.python("-m", "reaper", "drill", *options, name="drill")
        journals = await _follow(server, drill)
        assert drill.exit_code == 0, drill.output
    finally:
        processes.end()
    with connected(server) as client:
        for journal, entries in journals.items():
            for entry_id, flat in entries:
                client.execute_command("XADD", journal, entry_id, *flat)
    return Drilled(journals, json.loads(file.read_text()))


async def _follow(server: RedisServer, drill: Running) -> dict[str, list[Entry]]:
    """Read what is new in any journal, until the drill has ended."""
    found: dict[str, list[Entry]] = {}
    with connected(server) as client:
        while drill.running:
            for journal in client.execute_command("KEYS", "*:journal"):
                known = found.setdefault(journal.decode(), [])
                after = b"(" + known[-1][0] if known else b"-"
                known += [(entry_id, flat) for entry_id, flat in client.execute_command("XRANGE", journal, after, "+")]
            await anyio.sleep(0.02)  # a pace: journals begin under way, and no read waits for one that is not there
    return found


def read_back(spark: SparkSession, server: RedisServer) -> dict[str, DataFrame]:
    """Read every journal as ingestion does, and turn its entries into the tables of a lake."""
    found: dict[str, list[pa.RecordBatch]] = {table: [] for table in TABLES}
    for entry in read_all(server, streamPattern="*:journal"):
        fields = {name.encode(): value.encode() for name, value in entry["fields"]}
        for table, rows in parse(entry["stream"], [(entry["id"].encode(), fields)]):
            found[table].append(rows)
    return {
        table: spark.createDataFrame(pa.Table.from_batches(rows) if rows else [], TABLES[table])
        for table, rows in found.items()
    }
