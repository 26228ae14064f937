"""One embedded Spark for all tests of a process: small, and quick to start rather than fast."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.spark.session import build_session
from tests.pipeline.cluster import PATIENT, QUICK_JAVA
from tests.support.tiers import OPTION

SMALL = {"spark.sql.shuffle.partitions": "1", "spark.default.parallelism": "2"}
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""A query over a few rows takes a third less without being compiled and planned anew. The matrix does as users do."""


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """A session of local[2] with one shuffle partition."""
    conf = SMALL | PATIENT | ({} if pytestconfig.getoption(OPTION) else INTERPRETED)
    session = build_session("local[2]", heap="1g", conf=conf, java_options=QUICK_JAVA)
    yield session
    session.stop()
