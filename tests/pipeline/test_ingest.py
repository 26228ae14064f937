"""From Redis into the lake, each entry once, through all interruptions."""

import itertools
import os
import shutil
import signal
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.lake.files import FileWriter
from reaper.pipeline.lake.ingest import ingest, source_options
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.source import JournalReader
from reaper.pipeline.lake.supervisor import (
    IngestError,
    Progress,
    Run,
)
from reaper.pipeline.lake.tables import (
    LakeBusyError,
    create_tables,
    lake_at,
    only_writer,
    read_dead_letters,
    read_events,
    read_malformed,
)
from reaper.pipeline.settings import PipelineSettings
from reaper.pipeline.spark.failures import PYTHON_ENDED
from tests.conftest import StartServer
from tests.pipeline.hurry import Hurry
from tests.pipeline.journals import (
    DEAD,
    JOURNAL,
    ask_duckdb,
    connect,
    entries,
    rows,
    write_dead_letter,
    write_events,
    write_raw,
)
from tests.pipeline.lakes import DAY, add, open_table
from tests.pipeline.streams import counts
from tests.support.servers import RedisServer
from workers.protocol.errors import ConfigurationError, UnreachableError

NOW = Run(available_now=True)
LAKE = Layout.of(Path("lake"))


@pytest.fixture
def redis_server(start_server: StartServer) -> RedisServer:
    """One server of the test's own, because the data source's tests cover the versions."""
    return start_server()


def settings(server: RedisServer, **given: object) -> PipelineSettings:
    return PipelineSettings(**{"redis_url": server.url, "trigger": timedelta(milliseconds=100), **given})  # type: ignore[arg-type]


def run(spark: SparkSession, server: RedisServer, layout: Layout, how: Run = NOW, **given: object) -> Progress:
    return ingest(settings(server, **given), layout, lambda: spark, how)


def test_what_spark_was_writing_when_the_disk_was_full_hinders_nothing(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    write_events(redis_server, 3)
    layout = lake_at(tmp_path)
    layout.create()
    for torn in (".metadata.3f0c.tmp", "offsets/.0.3f0c.tmp", "offsets/..0.3f0c.tmp.crc", "commits/.0.3f0c.tmp"):
        file = layout.checkpoint / torn
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("v1")
    assert run(spark, redis_server, layout).events == 3
    assert not list(layout.checkpoint.rglob(".*.tmp*"))


def test_every_journal_and_every_dead_letter_comes_into_the_lake_once(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    journals = (JOURNAL, "{reaper}:journal", "{shop}mail:journal")
    for journal in journals:
        write_events(redis_server, 300, journal)
    write_dead_letter(redis_server, "job-1")
    write_raw(redis_server, JOURNAL, {"event": "acked", "entry": "1-0", "run_ms": b"\xff,2"}, {"what": "ever"})
    write_raw(redis_server, "orders", {"amount": "12"})
    layout = lake_at(tmp_path / "lake")
    seen: list[Progress] = []

    first = run(spark, redis_server, layout, replace(NOW, tell=seen.append), max_entries_per_trigger=500)
    assert (first.events, first.dead_letters, first.malformed) == (900, 1, 2)
    assert first.batches > 1
    assert seen[-1].events <= first.events
    write_events(redis_server, 10, start=300)
    assert run(spark, redis_server, layout).events == 10
    nothing = run(spark, redis_server, layout)
    assert nothing == Progress(behind=0, restarts=nothing.restarts)  # Spark grants Python 10 s, on any machine

    everything = sorted(rows(layout.root) + rows(layout.root, "malformed"))
    assert everything == entries(redis_server, journals)
    assert rows(layout.root, "dead_letters") == entries(redis_server, (DEAD,))
    assert sorted(row.raw for row in read_malformed(spark, layout.root).collect()) == [
        '{"event": "acked", "entry": "1-0", "run_ms": "\\\\xff,2"}',
        '{"what": "ever"}',
    ]


@pytest.mark.parametrize(("most", "files"), [(16, 2), (1, 1)])
def test_a_batch_has_a_task_for_each_core_up_to_the_setting(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path, most: int, files: int
) -> None:
    write_events(redis_server, 10_100)  # a task has 5,000 entries of a stream
    layout = lake_at(tmp_path / "lake")
    assert run(spark, redis_server, layout, max_tasks=most).events == 10_100
    found = open_table(layout).files()
    assert len(found) - len({file.date for file in found}) + 1 == files  # a task has a file more where a day ends


@pytest.mark.parametrize("place", [(JournalReader, "partitions"), (FileWriter, "write")], ids=["planner", "task"])
def test_a_python_of_sparks_that_is_killed_costs_a_sentence_and_no_entry(
    place: tuple[type, str],
    spark: SparkSession,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = tmp_path / "dead"
    does = getattr(*place)

    def die_once(*given: Any) -> Any:
        if not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return does(*given)

    monkeypatch.setattr(*place, die_once)
    write_events(redis_server, 300)
    layout = lake_at(tmp_path / "lake")
    progress = run(spark, redis_server, layout)
    assert dead.exists()
    assert progress.events == 300
    assert rows(layout.root) == entries(redis_server)
    assert [message for message in caplog.messages if PYTHON_ENDED in message] == [
        f'ingestion failed, retrying: lake={layout.root} pause_s=1.0 cause="{PYTHON_ENDED}"'
    ]


HUGE = 20_000_000


def test_a_journal_of_hostile_entries_comes_in_once_and_is_counted(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    hostile: list[dict[str, str | bytes]] = [
        {"event": "acked", "job": "j\0", "error": "x" * HUGE, "new": "y" * HUGE},
        {"event": "acked", "run_ms": "9" * 50},
        {"event": "acked", "error": b"\xff\xfe"},
        {"event": "acked", "entry": "7-0,8-0"},
        {"event": "acked", "entry": "7-0", "run_ms": "1,2"},
        {"event": ""},
        {"entry": "7-0"},
    ]
    for fields in hostile:
        write_raw(redis_server, JOURNAL, fields)
    write_events(redis_server, 300)
    layout = lake_at(tmp_path / "lake")
    progress = run(spark, redis_server, layout, max_entries_per_trigger=200)
    assert (progress.events, progress.malformed, progress.restarts) == (305, 3, 0)
    assert sorted({*rows(layout.root), *rows(layout.root, "malformed")}) == entries(redis_server)
    assert rows(layout.root, "malformed") == sorted(set(rows(layout.root, "malformed")))
    question = "SELECT length(error), length(extra), job FROM TABLE WHERE length(error) > 9"
    (huge,) = ask_duckdb(question, layout.table("events"))
    assert huge == (HUGE, HUGE + len('{"new":""}'), "j\0")


def test_a_running_ingestion_brings_what_comes_and_ends_when_it_is_told_to(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    layout = lake_at(tmp_path)
    stop = threading.Event()
    jobs = itertools.count()
    write_events(redis_server, 1, start=next(jobs))

    def add_more(progress: Progress) -> None:
        if progress.events == 3:
            stop.set()
        elif progress.events == len(entries(redis_server)):
            write_events(redis_server, 1, start=next(jobs))

    progress = run(spark, redis_server, layout, Run(stop=stop, tell=add_more))
    assert (progress.events, progress.batches) == (3, 3)
    assert sorted(row.job for row in read_events(spark, tmp_path).collect()) == ["job-0", "job-1", "job-2"]


def test_entries_that_were_trimmed_unread_stop_it_with_their_number_where_they_are_counted(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    layout = lake_at(tmp_path)
    write_events(redis_server, 10)
    run(spark, redis_server, layout)
    write_events(redis_server, 20, start=10)
    redis_server.command("XTRIM", JOURNAL, "MAXLEN", "=", "7")
    if not counts(redis_server):
        assert run(spark, redis_server, layout).events == 7
        return
    sentence = (
        r"stopped: stream \{orders\}:journal: 13 entries after .* were trimmed .*--no-fail-on-data-loss continues"
    )
    with pytest.raises(IngestError, match=sentence):
        run(spark, redis_server, layout)
    assert run(spark, redis_server, layout, fail_on_data_loss=False).events == 7


def test_dead_letters_that_are_redriven_or_deleted_stop_nothing(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    layout = lake_at(tmp_path)
    write_dead_letter(redis_server, "job-1")
    run(spark, redis_server, layout)
    for job in range(2, 5):
        write_dead_letter(redis_server, f"job-{job}")
    with connect(redis_server) as client:
        client.xdel(DEAD, *(entry for entry, _ in client.xrange(DEAD)))
    write_dead_letter(redis_server, "job-5")
    assert run(spark, redis_server, layout).dead_letters == 1
    assert [row.job for row in read_dead_letters(spark, tmp_path).orderBy("id").collect()] == ["job-1", "job-5"]


def test_a_checkpoint_that_goes_while_it_runs_ends_it_and_nothing_is_taken_for_what_is_there(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    layout = lake_at(tmp_path)
    write_events(redis_server, 3)

    def harm(progress: Progress) -> None:
        if progress.events == 3 and layout.checkpoint.exists():
            shutil.rmtree(layout.checkpoint)
            write_events(redis_server, 3, start=3)

    with pytest.raises(ConfigurationError, match=r"its checkpoint .* is missing"):
        run(spark, redis_server, layout, Run(stop=Hurry(), tell=harm))
    assert len(rows(tmp_path)) == 3


def test_a_lake_that_is_moved_away_under_way_is_waited_for_and_none_is_begun_in_its_place(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark would begin a checkpoint there, so that the lake could not be moved back, and would name some file."""
    layout, away = lake_at(tmp_path / "lake"), tmp_path / "away"
    write_events(redis_server, 3)

    class Patience(Hurry):
        """The server comes back while the ingester waits for the second time."""

        def wait(self, timeout: float | None = None) -> bool:
            if len(told()) == 2 and not Path(layout.root).exists():
                away.rename(layout.root)
            assert not away.exists() or len(told()) == len(caplog.messages) < 9, caplog.messages
            return super().wait(timeout)

    def told() -> list[str]:
        return [message for message in caplog.messages if f"{layout.root} does not exist" in message]

    def harm(progress: Progress) -> None:
        if progress.events == 3 and progress.restarts == 0 and not away.exists():
            Path(layout.root).rename(away)
            write_events(redis_server, 3, start=3)
        if progress.events == 6:
            stop.set()

    stop = Patience()
    assert run(spark, redis_server, layout, Run(stop=stop, tell=harm)).restarts >= 2
    assert len(told()) == 2
    assert rows(layout.root) == entries(redis_server)


def test_a_lake_that_is_being_filled_is_not_filled_by_another(redis_server: RedisServer, tmp_path: Path) -> None:
    layout = lake_at(tmp_path)
    with only_writer(layout), pytest.raises(LakeBusyError):
        ingest(settings(redis_server), layout, _no_session, NOW)


def test_a_lake_whose_checkpoint_is_gone_is_not_filled_a_second_time(redis_server: RedisServer, tmp_path: Path) -> None:
    layout = lake_at(tmp_path)
    create_tables(layout)
    add(layout, 0, {DAY: ["job"]})
    with pytest.raises(ConfigurationError, match=r"its checkpoint .* is missing"):
        ingest(settings(redis_server), layout, _no_session, NOW)
    (layout.checkpoint / "offsets").mkdir(parents=True)
    (layout.checkpoint / "offsets" / "0").touch()
    (layout.state / "name").write_text("of another lake")
    with pytest.raises(ConfigurationError, match=r"its checkpoint .* is missing"):
        ingest(settings(redis_server), layout, _no_session, NOW)


def test_without_redis_spark_is_not_even_started(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.stop()
    with pytest.raises(UnreachableError, match="cannot use Redis at"):
        ingest(settings(redis_server), lake_at(tmp_path), _no_session, NOW)


def _no_session() -> SparkSession:
    raise AssertionError("Spark must not be started")


# --- addresses --------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the environment back that a test changes through the code it tests."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.usefixtures("environment")
def test_a_password_never_gets_into_an_option_of_spark() -> None:
    url = "redis://:s3cret@host:1/0"
    options = source_options(PipelineSettings(redis_url=url), LAKE)
    assert "s3cret" not in str(options)
    assert os.environ[options["urlEnv"]] == url
    with pytest.raises(ConfigurationError, match="redis_url_env"):
        source_options(PipelineSettings(redis_url=url, spark_remote="sc://h"), LAKE)
    assert source_options(PipelineSettings(redis_url_env="THEIRS", spark_remote="sc://h"), LAKE)["urlEnv"] == "THEIRS"
