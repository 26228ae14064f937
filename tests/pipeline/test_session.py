"""The place at which Spark runs, and its setup."""

import os
import pwd
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from reaper.pipeline.spark import session
from reaper.pipeline.spark.session import EVERYWHERE, SparkMissingError, build_session, is_embedded
from workers.protocol.errors import ConfigurationError


def test_every_session_has_what_ours_need(spark: SparkSession) -> None:
    assert {name: spark.conf.get(name) for name in EVERYWHERE} == dict(EVERYWHERE)
    assert build_session(master="local[2]") is spark


def test_an_embedded_spark_uses_this_python_and_opens_no_port_to_others(spark: SparkSession) -> None:
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert os.environ["PYSPARK_PYTHON"]


@pytest.mark.parametrize(
    ("master", "embedded"), [(None, True), ("local[3]", True), ("spark://h:7077", False), ("yarn", False)]
)
def test_everything_runs_here_unless_a_master_is_named(
    monkeypatch: pytest.MonkeyPatch, master: str | None, embedded: bool
) -> None:
    for name in ("MASTER", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert is_embedded(master) is embedded


def test_a_master_in_sparks_own_configuration_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours\nspark.master   spark://h:7077\nspark.eventLog.enabled=true\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not is_embedded(None)
    assert is_embedded("local[1]")
    monkeypatch.setenv("MASTER", "local[2]")
    assert is_embedded(None)


def test_what_cannot_work_is_said_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="master and remote are both set"):
        build_session(master="local[1]", remote="sc://h")


@pytest.mark.parametrize(
    ("heap", "why"),
    [
        ("lots", "is not an amount of memory. Write it as 1g or 1500m"),
        ("1t", "is not an amount of memory"),
        ("-1g", "is not an amount of memory"),
        ("99999999999g", "is not an amount of memory"),
        ("449m", "is too little for Spark. Write 450m or more"),
    ],
)
def test_a_heap_that_java_or_spark_would_reject_is_rejected_before(heap: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^spark_memory {heap!r} {why}"):
        build_session(heap=heap)


def test_a_user_without_a_name_is_told_so_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {user.pw_uid for user in pwd.getpwall()}
    nameless = next(uid for uid in range(50_000, 60_000) if uid not in named)
    monkeypatch.setattr(os, "geteuid", lambda: nameless)
    with pytest.raises(ConfigurationError, match=rf"under a user without a name \(UID {nameless}\)\. Add it to /etc/"):
        build_session()


class _JavaError(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """The message of Java about a session that cannot be made."""

    def __init__(self) -> None:
        """Without a Java that could be asked."""

    def __str__(self) -> str:
        return (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'\n\tat org.apache.spark.x\n"
        )


def test_a_master_that_spark_does_not_know_is_rejected_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"^spark_master 'bogus' is unknown to Spark\. Write local\[\*\], "):
        session.build_session("bogus")

    def fails(_builder: object) -> None:
        raise _JavaError

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fails)
    monkeypatch.setattr(session, "java_environment", dict)
    monkeypatch.setattr("os.environ", dict(os.environ))
    with pytest.raises(
        SparkMissingError, match=r"^Spark did not start on local\[x\]: Could not parse Master URL: 'local\[x\]'$"
    ):
        session.build_session("local[x]")


def test_a_connect_server_that_is_not_there_is_a_sentence_at_once() -> None:
    with pytest.raises(
        SparkMissingError, match=r"^no Spark Connect server at sc://127\.0\.0\.1:1/: .* refused\. Start"
    ):
        build_session(remote="sc://127.0.0.1:1/;token=secret")


def test_under_spark_submit_nothing_is_set_that_was_decided_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert session._classic_conf(None, "2g", "") == dict(EVERYWHERE)


def test_the_cores_of_spark_are_counted(spark: SparkSession) -> None:
    assert session.cores_of(spark) == 2
