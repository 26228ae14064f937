"""One embedded Spark for all tests of a process: small, and quick to start rather than fast."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.spark.session import build_session
from tests.benchmarks.synthetic import generate_lake
from tests.pipeline.cluster import PATIENT, QUICK_JAVA
from tests.support.tiers import OPTION

SMALL = {"spark.sql.shuffle.partitions": "1", "spark.default.parallelism": "2"}
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""A query over a few rows takes a third less without being compiled and planned anew. The matrix does as users do."""


ROOMY_JAVA = "-XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m -Xmn256m"
"""All tests together have so much code that smaller spaces are swept, and searched for garbage, again and again."""
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Nobody doubts the fifteen thousand classes of Spark's own jars. The matrix has Java verify them, as users do."""


@dataclass(frozen=True)
class Generated:
    """A lake that nobody changes."""

    path: Path
    events: int
    """About how many it was asked for."""
    jobs: int
    seed: int


@pytest.fixture(scope="session")
def generated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    """Generate a lake once, for all who read one."""
    path, events, seed = tmp_path_factory.mktemp("generated") / "lake", 10_000, 3
    return Generated(path, events, generate_lake(spark, path, events=events, seed=seed), seed)


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """A session of local[2] with one shuffle partition."""
    as_users_do = pytestconfig.getoption(OPTION)
    conf = SMALL | PATIENT | ({} if as_users_do else INTERPRETED)
    java_options = f"{QUICK_JAVA} {ROOMY_JAVA}" + ("" if as_users_do else f" {UNVERIFIED}")
    session = build_session("local[2]", heap="1g", conf=conf, java_options=java_options)
    yield session
    session.stop()
