"""Every process that deploy/ starts understands its words and settings, and has the time that it needs to end."""

import os
from datetime import timedelta
from pathlib import Path

import click
import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from reaper.cli.main import main as reaper_command
from reaper.pipeline.cli import pipeline
from reaper.pipeline.settings import PipelineSettings
from reaper.service import FAREWELL_S
from reaper.settings import ReaperSettings, check_groups
from tests.deploy.assets import DEPLOY, PROCESSES, SETTINGS_FOLDER, Started, document, image_environment, unit
from workers.cli import main as worker_command
from workers.runtime.settings import load_settings
from workers.settings import WorkerSettings

YAML_FILES = sorted(DEPLOY.rglob("*.yaml"))
STYLE = YamlLintConfig(
    """
    extends: default
    rules:
      document-start: disable
      line-length: disable
      comments: {min-spaces-from-content: 1}
    """
)
SETTLING_S = 10
"""What a worker may take beyond `drain_timeout`: its last settlements, its farewell, the last exports."""

started = pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.place)


@pytest.mark.parametrize("file", YAML_FILES, ids=lambda file: str(file.relative_to(DEPLOY)))
def test_yaml_is_read_as_it_looks(file: Path) -> None:
    problems = [f"line {one.line}: {one.desc}" for one in linter.run(file.read_text(encoding="utf-8"), STYLE)]
    assert problems == []
    assert list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def test_each_way_starts_both() -> None:
    assert {(process.place.split()[0], process.program) for process in PROCESSES} == {
        (way, program) for way in ("compose", "kubernetes", "systemd") for program in ("reaper", "worker")
    }


@started
def test_the_words_are_those_of_the_command(process: Started) -> None:
    group: click.Group = reaper_command if process.program == "reaper" else worker_command
    command = group.get_command(click.Context(group), process.argv[1])
    assert command
    command.make_context(process.program, process.argv[2:])  # rejects what it does not know


@pytest.fixture
def _environment(process: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the process's variables, and nothing else of ours; files that they name are there."""
    for name in list(os.environ):
        if name.startswith(("REAPER_", "REDIS_URL")):
            monkeypatch.delenv(name)
    secret = tmp_path / "redis-url"
    secret.write_text("redis://user:password@redis:6379/0\n")
    for name, value in process.environment.items():
        if name.startswith(("REAPER_", "REDIS_URL")):
            monkeypatch.setenv(name, str(secret) if name.endswith("_FILE") else value)


def _settings(process: Started) -> ReaperSettings | WorkerSettings:
    if process.program == "reaper":
        return check_groups(load_settings(ReaperSettings, file=process.settings_file))
    arguments = {"stream": "orders", "group": "billing"}  # the program's
    return load_settings(WorkerSettings, file=process.settings_file, arguments=arguments)


@started
@pytest.mark.usefixtures("_environment")
def test_the_settings_are_settings_and_the_secret_gets_in(process: Started) -> None:
    assert _settings(process).redis_url == "redis://user:password@redis:6379/0"
    assert [name for name in process.environment if "PASSWORD" in name or name.endswith("REDIS_URL")] == []


@started
@pytest.mark.usefixtures("_environment")
def test_there_is_time_to_end(process: Started) -> None:
    settings = _settings(process)
    if isinstance(settings, WorkerSettings):
        needed = settings.drain_timeout + timedelta(seconds=SETTLING_S)
    else:
        needed = timedelta(seconds=4 * FAREWELL_S)  # release, unregister, callbacks, exports
    assert timedelta(seconds=process.grace_s) >= needed


@started
@pytest.mark.usefixtures("_environment")
def test_health_is_served_where_it_is_asked_for(process: Started) -> None:
    settings = _settings(process)
    if process.place.startswith("systemd worker"):
        assert settings.health_port is None  # several on a machine
        return
    assert settings.health_port == int(image_environment()["REAPER_HEALTH_PORT"])
    assert settings.health_host == ("127.0.0.1" if process.place.startswith("systemd") else "0.0.0.0")  # noqa: S104


@started
def test_the_settings_file_is_where_the_words_say(process: Started) -> None:
    named = [word for word in process.argv if word.startswith(SETTINGS_FOLDER)]
    assert bool(named) == (process.settings_file is not None)


# --- the pipeline -------------------------------------------------------------------------------------------


def _ingestions() -> list[tuple[list[str], dict[str, str]]]:
    """Return the words and variables with which a timer starts it."""
    timed = unit("reaper-ingest.service")
    job = document(DEPLOY / "kubernetes/pipeline/cron-job.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = job["containers"]
    return [
        (timed["ExecStart"][0].split(), dict(word.split("=", 1) for word in " ".join(timed["Environment"]).split())),
        (container["args"], {one["name"]: one["value"] for one in container["env"]}),
    ]


@pytest.mark.parametrize(("argv", "variables"), _ingestions(), ids=["systemd", "kubernetes"])
def test_a_timer_starts_ingestion_as_it_wants_to_be(
    argv: list[str], variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "redis-url"
    secret.write_text("redis://pipeline:password@redis:6379/0\n")
    for name, value in variables.items():
        if name.startswith("REAPER_"):
            monkeypatch.setenv(name, str(secret) if name.endswith("_FILE") else value)
    assert argv[1:3] == ["pipeline", "ingest"]
    command = pipeline.commands["ingest"].make_context("ingest", argv[3:])
    assert command.params["available_now"] is True
    assert load_settings(PipelineSettings).redis_url == "redis://pipeline:password@redis:6379/0"
