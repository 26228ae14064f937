"""The commands of `reaper pipeline`, as people type them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from reaper.cli.main import main
from reaper.pipeline.progress import ProgressLine
from tests.conftest import StartServer
from tests.docs.json_page import check
from tests.pipeline.journals import JOURNAL, entries, rows, write_dead_letter, write_events, write_raw
from workers.runtime.options import UNREACHABLE_EXIT, USAGE_EXIT

LOCAL = ("--spark-master", "local[2]")


def reaper(*words: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *words])


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_from_redis_to_a_lake_and_a_trimmed_journal(
    spark: SparkSession, start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the tests' own process keeps its own ways to be stopped
    assert spark.version
    server = start_server()
    where = ("--lake", str(tmp_path / "lake"))
    redis = ("--redis-url", server.url)
    ingest = ("ingest", *where, *redis, "--available-now", *LOCAL)
    write_raw(server, JOURNAL, {"what": "ever"})
    write_dead_letter(server, "job-1")
    write_events(server, 200)
    told = document(reaper(*ingest, "-o", "json"))
    check("reaper pipeline ingest", told)
    assert (told["events"], told["batches"]) == (200, 1)  # restarts: Spark grants Python 10 s, on any machine
    everything = entries(server)

    (trimmed,) = document(reaper("trim", *where, *redis, "--trim-margin", "0", "-o", "json"))
    check("reaper pipeline trim", [trimmed])
    assert (trimmed["stream"], trimmed["removed"] + trimmed["left"]) == (JOURNAL, 201)
    assert trimmed["left"] == len(entries(server)) < 110  # Redis trims a hundred at a time
    write_events(server, 200, start=200)
    everything = sorted({*everything, *entries(server)})
    people = reaper(*ingest)
    assert (people.exit_code, people.stdout) == (0, "200 events, 0 dead letters in 1 batches\n")
    assert sorted(rows(tmp_path / "lake") + rows(tmp_path / "lake", "malformed")) == everything


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("ingest", "--redis-url", "redis://127.0.0.1:1/0"), "error: cannot use Redis at"),
        (("ingest", "--trigger", "soon"), "trigger"),
        (("ingest", "--lake", "hdfs://host/lake"), "error: lake 'hdfs://host/lake' is neither a folder"),
        (("ingest", "--lake", "s3://bucket/lake"), "Set --lake-state to a folder"),
        (("ingest", "--redis-url-env", "NOT_SET"), "error: redis_url_env names NOT_SET"),
        (("report",), "error: there is no lake at"),
        (("advise",), "error: there is no lake at"),
        (("trim",), "error: there is no lake at"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    result = reaper(*words)
    assert result.exit_code == (UNREACHABLE_EXIT if "cannot use Redis" in sentence else USAGE_EXIT)
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert "starting Spark" not in result.stderr, "it is not started for nothing"


def test_who_told_the_reaper_where_redis_is_has_told_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REAPER_REDIS_URL", "rediss://127.0.0.1:1/0")
    monkeypatch.setenv("REAPER_REDIS_CA_FILE", str(tmp_path / "ca.pem"))
    assert "cannot use Redis at 'rediss://127.0.0.1:1/0?ssl_ca_certs=" in reaper("ingest").stderr


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("reaper.pipeline.command.find_spec", lambda name: None if name == "pyspark" else find(name))
    result = reaper("trim")
    assert result.exit_code == USAGE_EXIT
    assert "the pipeline needs pyspark. Run pip install '.[spark]' in your clone" in result.stderr


def test_the_other_commands_and_all_help_work_without_the_extra() -> None:
    program = (
        "import sys\nfor name in ('pyspark', 'pyarrow', 'pandas'): sys.modules[name] = None\nfrom reaper.cli.main "
        "import main\nfor words in (['run', '--help'], ['pipeline', '--help'], ['pipeline', 'ingest', '--help']):\n   "
        " try: main(words)\n    except SystemExit as end: assert not end.code\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--max-entries-per-trigger" in done.stdout


def test_the_pipelines_settings_in_the_environment_do_not_bother_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_LAKE", "/data/lake")
    monkeypatch.setenv("REAPER_REDIS_URL", "redis://127.0.0.1:1/0")
    assert "unknown setting" not in CliRunner().invoke(main, ["status"]).output


def test_progress_is_a_plain_line_now_and_then_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    line = ProgressLine(clock=lambda: now[0])
    for second, text in ((0.0, "one"), (1.0, "two"), (11.0, "three"), (30.0, "three")):
        now[0] = second
        line.show(text)
    line.end()
    ProgressLine(quiet=True).show("nothing")
    assert capsys.readouterr().err == "one\nthree\n"
