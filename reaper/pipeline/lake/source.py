"""The data source of ingestion. Its tasks read entries, write them into the lake, and report the files.

So rows go from Redis into files within one Python process, and never through Java. Spark plans batches, notes them, and
runs and repeats tasks. This runs in Spark's Python.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from reaper.pipeline.lake.files import WRITTEN, FileWriter
from reaper.pipeline.lake.parse import TableRows, parse
from reaper.pipeline.redis_stream.client import Client, printable
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.ranges import RangeReader, StreamRange
from reaper.pipeline.redis_stream.source import Offset, StreamReader

NAME = "stream-reaper-journals"
LAKE = "lake"
"""Option with the root of the lake, in addition to those of ``redis-stream``."""


class JournalSource(DataSource):
    """``format("stream-reaper-journals")`` with a row of `WRITTEN` for each written file."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._lake = given.pop(LAKE)
        self._parsed = Options.parse(given)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return the columns of a task's report."""
        return WRITTEN

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """Return the reader of the one query there is."""
        return JournalReader(self._parsed, self._lake)


@dataclass(frozen=True)
class Share(InputPartition):
    """The work of one task."""

    ranges: tuple[StreamRange, ...]


class JournalReader(StreamReader):
    """Plans as the reader of ``redis-stream`` does. Its tasks write the entries that they read."""

    def __init__(self, options: Options, lake: str) -> None:
        super().__init__(options)
        self._lake = lake

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Deal the ranges of a batch out to tasks, however many streams there are."""
        ranges: list[Any] = [*super().partitions(start, end)]
        tasks = min(self._options.partitions, len(ranges))
        return [Share(tuple(ranges[task::tasks])) for task in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Write the rows of a share, and report the files."""
        collecting = gc.isenabled()
        gc.disable()  # entries and rows make no cycles, and looking for them takes a third of the time
        try:
            yield FileWriter(self._lake).write(_rows(partition, self._options))
        finally:
            if collecting:  # Spark uses this process again
                gc.enable()


def _rows(share: Any, options: Options) -> Iterator[TableRows]:
    client = Client(options)
    try:
        for part in share.ranges:
            for page in RangeReader(client, part).pages():
                yield from parse(printable(part.stream), page)
    finally:
        client.close()
