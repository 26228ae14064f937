"""Settings come from flags, environment and file, in that order, and every mistake is a sentence."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import Redelivery
from workers.runtime.settings import Seconds, Section, Settings, load_settings, to_ms
from workers.runtime.settings_errors import did_you_mean


class Lane(Section):
    """A table inside the settings."""

    name: str
    width: int = Field(1, ge=1)


class ShopSettings(Settings):
    """Settings of an imaginary process."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="SHOP_")
    other_env: ClassVar[frozenset[str]] = frozenset({"SHOP_DEMO"})

    stream: str = "orders"
    patience: Annotated[Seconds, Field(gt=timedelta(0))] = timedelta(seconds=30)
    size: int = Field(3, ge=1)
    redelivery: Redelivery = Redelivery.STREAM
    lanes: tuple[Lane, ...] = ()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOP_STREAM", "SHOP_SIZE", "SHOP_PATIENCE"):
        monkeypatch.delenv(name, raising=False)


def write(folder: Path, content: str) -> Path:
    file = folder / "shop.toml"
    file.write_text(content)
    return file


def sentence(**sources: Any) -> str:
    """Return what is said about settings that cannot work."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(ShopSettings, **sources)
    return str(caught.value)


def test_defaults_hold_where_nothing_is_given() -> None:
    assert load_settings(ShopSettings) == ShopSettings()


def test_a_flag_beats_the_environment_and_the_environment_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, 'stream = "file"\nsize = 7\npatience = 5\n')
    monkeypatch.setenv("SHOP_STREAM", "environment")
    monkeypatch.setenv("SHOP_SIZE", "8")
    loaded = load_settings(ShopSettings, flags={"stream": "flag", "size": None}, file=file)
    assert (loaded.stream, loaded.size, loaded.patience) == ("flag", 8, timedelta(seconds=5))


@pytest.mark.parametrize("value", ["30", "30s", " 30 ", 30, 30.0, timedelta(seconds=30)])
def test_durations_are_seconds(value: Any) -> None:
    assert load_settings(ShopSettings, flags={"patience": value}).patience == timedelta(seconds=30)


def test_durations_are_whole_milliseconds_for_redis() -> None:
    assert [to_ms(timedelta(seconds=value)) for value in (30, 0.0015, 0.5)] == [30_000, 2, 500]


@pytest.mark.parametrize("value", ["soon", True, -1, 0, "inf", "nan", 1e300, 10**400, [30]])
def test_what_is_no_duration_is_refused_by_name(value: Any) -> None:
    assert "'patience'" in sentence(flags={"patience": value})


def test_a_table_is_read_with_its_own_rules(tmp_path: Path) -> None:
    file = write(tmp_path, '[[lanes]]\nname = "fast"\nwidth = 2\n')
    assert load_settings(ShopSettings, file=file).lanes == (Lane(name="fast", width=2),)
    assert "lanes.0.width" in sentence(file=write(tmp_path, '[[lanes]]\nname = "fast"\nwidth = 0\n'))
    assert "lanes.0.name" in sentence(file=write(tmp_path, "[[lanes]]\nwidth = 1\n"))
    assert "lanes.0.color" in sentence(file=write(tmp_path, '[[lanes]]\nname = "a"\ncolor = 1\n'))


def test_where_the_value_came_from_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "size = 0\n")
    assert f"in {file}" in sentence(file=file)
    assert "--size" in sentence(flags={"size": 0})
    monkeypatch.setenv("SHOP_SIZE", "0")
    assert "SHOP_SIZE" in sentence()


def test_every_problem_is_said_at_once() -> None:
    said = sentence(flags={"size": 0, "patience": "soon"})
    assert ("'size'" in said, "'patience'" in said) == (True, True)


def test_a_misspelt_setting_is_refused_with_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Did you mean 'stream'?" in sentence(file=write(tmp_path, 'strem = "orders"\n'))
    monkeypatch.setenv("SHOP_STREM", "orders")
    assert "Did you mean 'SHOP_STREAM'?" in sentence()


def test_variables_of_the_process_that_are_no_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DEMO", "1")
    assert load_settings(ShopSettings) == ShopSettings()


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SIZE", "")
    assert load_settings(ShopSettings).size == 3


def test_a_choice_that_is_none_is_refused_with_the_choices() -> None:
    said = sentence(flags={"redelivery": "tail"})
    assert ("stream" in said, "retry-stream" in said) == (True, True)


@pytest.mark.parametrize("content", ["size = ", b"\xff"])
def test_a_file_that_is_no_toml_is_said(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "shop.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert "cannot read settings file" in sentence(file=file)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert "cannot read settings file" in sentence(file=tmp_path / "missing.toml")


def test_a_suggestion_is_made_where_one_is_near_and_else_the_names_are_listed() -> None:
    assert did_you_mean("strem", ["stream", "size"]) == ". Did you mean 'stream'?"
    assert "size, stream" in did_you_mean("xyz", ["stream", "size"])
