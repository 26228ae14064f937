"""One embedded Spark for all tests: small, and quick to start rather than fast."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.spark.session import build_session

CONF = {"spark.sql.shuffle.partitions": "1", "spark.default.parallelism": "2"}
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session of local[2] with one shuffle partition."""
    session = build_session("local[2]", heap="1g", conf=CONF, java_options=QUICK)
    yield session
    session.stop()
