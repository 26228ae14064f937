"""Journals and dead letters in a real Redis, and the rows that a lake should hold of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import redis

from reaper.pipeline.lake.delta import LakeTable
from tests.support.servers import RedisServer

JOURNAL = "{orders}:journal"
DEAD = "{orders}:dead:billing"


def connect(server: RedisServer) -> redis.Redis:
    """Return a blocking client."""
    return redis.Redis(port=server.port, protocol=2)


def write_events(server: RedisServer, number: int, journal: str = JOURNAL, start: int = 0) -> None:
    """Add events of ``number`` jobs, `job-<n>` from ``start`` on."""
    with connect(server) as client:
        pipeline = client.pipeline(transaction=False)
        for job in range(start, start + number):
            data = {"group": "billing", "delivery": 1, "consumer": "host~0123456789ab", "begun_ms": 1, "run_ms": job}
            pipeline.xadd(journal, {"event": "acked", "job": f"job-{job}", **data})
        pipeline.execute()


def write_dead_letter(server: RedisServer, job: str, stream: str = DEAD) -> None:
    """Add a dead letter as the scripts write them."""
    fields = {
        "amount": "12",
        "reaper.job": job,
        "reaper.deliveries": "3",
        "reaper.generation": "0",
        "reaper.first_ms": "1700000000000",
        "reaper.consumers": "a.1,b.2",
        "reaper.dead.stream": "orders",
        "reaper.dead.group": "billing",
        "reaper.dead.entry": "1700000000000-0",
        "reaper.dead.reason": "max_deliveries",
        "reaper.dead.error": "ValueError: no",
        "reaper.dead.last_ms": "1700000001000",
        "reaper.dead.at_ms": "1700000002000",
    }
    with connect(server) as client:
        client.xadd(stream, fields)


def write_raw(server: RedisServer, stream: str, *entries: dict[str, str | bytes]) -> None:
    """Add entries as they are."""
    with connect(server) as client:
        for fields in entries:
            client.xadd(stream, fields)


def rows(lake: str | Path, table: str = "events") -> list[str]:
    """Return stream and ID of each row, as another program than Spark reads the table."""
    if not (Path(lake) / table / "_delta_log").is_dir():
        return []
    found = pl.scan_delta(str(Path(lake) / table)).select(pl.concat_str("stream", "id", separator=" ")).collect()
    return sorted(found.to_series().to_list())


def entries(server: RedisServer, streams: Iterable[str] = (JOURNAL,)) -> list[str]:
    """Return stream and ID of each entry there is."""
    with connect(server) as client:
        return sorted(f"{stream} {entry.decode()}" for stream in streams for entry, _ in client.xrange(stream))


def ask_duckdb(query: str, table: str | Path) -> list[Any]:
    """Return DuckDB's answer; TABLE in ``query`` stands for the files that count of a Delta table."""
    files = [str(Path(table, file.path)) for file in LakeTable(str(table)).files()]
    if not files:
        return []
    found = duckdb.sql(query.replace("TABLE", f"read_parquet({files}, hive_partitioning = true)"))
    return found.fetchall() if found else []
