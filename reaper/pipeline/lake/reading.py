"""Makes a DataFrame of a table in an object store. Spark's tasks read its files themselves.

Spark's own reader would need jars that no Python package contains. Tasks run in Spark's Python, where only the standard
library, pyarrow and pyspark may be imported.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from reaper.pipeline.lake.delta import LakeFile, arrow_schema
from reaper.pipeline.lake.files import PARTITION
from reaper.pipeline.lake.store import filesystem
from reaper.pipeline.spark.shipping import ship_by_value


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads the files of one table, in a task."""

    address: str
    schema: pa.Schema
    """Of the table, with the column of its partitions."""

    def __call__(self, names: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files in ``names`` (columns ``path`` and ``date``). Raises OSError."""
        from pyarrow import dataset  # it imports pandas, if that is installed

        store = filesystem(self.address)
        stored = self.schema.remove(self.schema.get_field_index(PARTITION))
        for batch in names:
            for path, day in zip(batch.column("path").to_pylist(), batch.column("date"), strict=True):
                for rows in dataset.dataset(path, stored, "parquet", store).to_batches():
                    columns = dict(zip(stored.names, rows.columns, strict=True))
                    columns[PARTITION] = pa.repeat(day, rows.num_rows)
                    yield pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def read_store(spark: SparkSession, address: str, files: Iterable[LakeFile], schema: StructType) -> DataFrame:
    """Return the rows of ``files`` of the table at ``address``, read once and kept by Spark until its session ends.

    Executors need the store's address and credentials in their environment.
    """
    ship_by_value()
    names = spark.createDataFrame([(file.path, file.date) for file in files], "path string, date date")
    return names.mapInArrow(FileReader(address, arrow_schema(schema)), schema).persist(StorageLevel.MEMORY_AND_DISK)
