import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest
from click.testing import CliRunner
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from reaper.settings import ReaperSettings
from workers import WorkerSettings
from workers.protocol.errors import ConfigurationError, UnreachableError
from workers.runtime.options import UNREACHABLE_EXIT, USAGE_EXIT, errors_as_sentences, settings_options
from workers.runtime.settings import Seconds, Section, Settings, load_settings


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Sample(Settings):
    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="SAMPLE_")

    some_name: str = Field("x", description="A name.")
    count: int | None = Field(None, description="A count.")
    wait: Seconds = Field(timedelta(seconds=1.5), description="A wait.")
    colour: Colour = Field(Colour.RED, description="A colour.")
    quiet: bool = Field(False, description="Say less.")
    secret: str = Field("", description="Left out.")


def invoke(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[dict[str, Any], str]:
    seen: dict[str, Any] = {}

    @click.command()
    @settings_options(Sample, exclude=["secret"])
    def command(config: Path | None, **flags: Any) -> None:
        seen.update(flags, config=config)

    result = CliRunner().invoke(command, arguments, env=env)
    return seen, result.output


UNSET = {"some_name": None, "count": None, "wait": None, "colour": None, "quiet": None, "config": None}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], {}),
        (["--some-name", "y"], {"some_name": "y"}),
        (["--wait", "2.5"], {"wait": "2.5"}),
        (["--quiet"], {"quiet": True}),
        (["--no-quiet"], {"quiet": False}),
        (["--config", "x.toml"], {"config": Path("x.toml")}),
    ],
)
def test_each_field_has_a_flag_that_is_none_by_default(arguments: list[str], given: dict[str, Any]) -> None:
    assert invoke(*arguments)[0] == UNSET | given


def test_what_flags_say_is_read_by_the_settings() -> None:
    flags, _ = invoke("--count", "7", "--wait", "2.5", "--colour", "blue", "--no-quiet")
    del flags["config"]

    settings = load_settings(Sample, flags=flags)

    assert settings == Sample(count=7, wait=timedelta(seconds=2.5), colour=Colour.BLUE, quiet=False)


def test_help_gives_description_variable_and_default() -> None:
    text = re.sub(r"\s+", " ", invoke("--help")[1])

    assert "--secret" not in text, "it is excluded"
    assert "--some-name TEXT A name. [env: SAMPLE_SOME_NAME; default: x]" in text
    assert "--count NUMBER A count. [env: SAMPLE_COUNT]" in text
    assert "--wait DURATION A wait. [env: SAMPLE_WAIT; default: 1.5s]" in text
    assert "--colour [red|blue] A colour. [env: SAMPLE_COLOUR; default: red]" in text
    assert "--quiet / --no-quiet Say less. [env: SAMPLE_QUIET; default: false]" in text


def test_the_settings_file_can_be_named_in_the_environment() -> None:
    assert invoke(env={"SAMPLE_CONFIG": "y.toml"})[0]["config"] == Path("y.toml")


@pytest.mark.parametrize("kind", [WorkerSettings, ReaperSettings])
def test_no_setting_of_a_process_is_without_flag_and_description(kind: type[Settings]) -> None:
    command = settings_options(kind)(click.command(lambda **_: None))

    assert {option.name for option in command.params} == {*kind.model_fields, "config"}
    assert all(field.description for field in kind.model_fields.values())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("stream is empty"), USAGE_EXIT),
        (
            ExceptionGroup("many", [ExceptionGroup("inside", [UnreachableError("stream is empty")])]),
            UNREACHABLE_EXIT,
        ),
    ],
)
def test_our_errors_end_the_command_in_words(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, errors_as_sentences():
        raise error

    assert (ended.value.code, capsys.readouterr().err) == (code, "error: stream is empty\n")


@pytest.mark.parametrize("error", [ValueError("a bug"), ExceptionGroup("many", [ValueError("a bug")])])
def test_other_errors_keep_their_traceback(error: Exception) -> None:
    with pytest.raises(type(error)), errors_as_sentences():
        raise error


class Spoken(Section):
    """Set by flags alone."""

    file: Path | None = Field(None, description="A file.")
    count: int = Field(3, ge=1, description="A count.")
    quiet: bool = Field(False, description="Say less.")


def test_a_class_without_a_prefix_is_set_by_flags_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNT", "7")
    monkeypatch.setenv("FILE_FILE", "/nowhere")

    @click.command()
    @settings_options(Spoken)
    def command(**flags: Any) -> None:
        click.echo(repr(load_settings(Spoken, flags=flags)))

    runner = CliRunner()
    assert runner.invoke(command).output == "Spoken(file=None, count=3, quiet=False)\n"
    given = runner.invoke(command, ["--file", "x", "--count", "2", "--quiet"]).output
    assert given == f"{Spoken(file=Path('x'), count=2, quiet=True)!r}\n"
    help_text = runner.invoke(command, ["--help"]).output
    assert ("A count.  [default: 3]" in help_text, "--config" in help_text, "--no-quiet" in help_text) == (
        True, False, True,
    )  # fmt: skip
