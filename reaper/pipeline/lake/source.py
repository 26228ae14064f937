"""The data source of ingestion: reads entries as ``redis-stream`` does, and tells which files their rows are in.

So rows go from Redis into files within one Python process, and never through Java. Spark plans batches, notes them, and
has tasks carried out, and repeated. Runs in Spark's Python, as the modules do that write.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from reaper.pipeline.lake.events import RAW
from reaper.pipeline.lake.files import WRITTEN, FileWriter
from reaper.pipeline.redis_stream.columns import read_range
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.ranges import StreamRange
from reaper.pipeline.redis_stream.shipping import Sealed
from reaper.pipeline.redis_stream.source import Offset, StreamReader

NAME = "stream-reaper-journals"
FOLDER, FILES = "folder", "files"
"""Options beside those of ``redis-stream``: where tasks write, and how many files they make for each date at most."""


class JournalSource(Sealed, DataSource):
    """``format("stream-reaper-journals")``: what tasks have written of the streams' entries, as `WRITTEN` says."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._folder, self._files = Path(given.pop(FOLDER)), int(given.pop(FILES))
        self._parsed = Options.parse(given)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return what tasks say."""
        return WRITTEN

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """Return the reader of the one query there is."""
        return JournalReader(self._parsed, self._folder, self._files)


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads."""

    ranges: tuple[StreamRange, ...]


class JournalReader(StreamReader):
    """Plans as the reader of ``redis-stream`` does; its tasks write what they read."""

    def __init__(self, options: Options, folder: Path, files: int) -> None:
        super().__init__(options, RAW)
        self._folder, self._files = folder, files

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Deal the ranges of a batch out to tasks: one file each, however many streams there are."""
        ranges = [part for part in super().partitions(start, end) if isinstance(part, StreamRange)]
        return [Share(tuple(ranges[task :: self._files])) for task in range(min(self._files, len(ranges)))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Write the rows of a share, and say into which files."""
        assert isinstance(partition, Share)
        parts = (batch for part in partition.ranges for batch in read_range(part, self._options, self._schema))
        yield FileWriter(self._folder).write(parts)
