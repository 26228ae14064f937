"""Settings come from flags, environment, files and arguments, in that order, and every mistake is a sentence.

A variable of the environment may name a file that holds a value: so passwords get in.
"""

import codecs
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

URL = "redis://worker:p%40ss@redis.internal:6379/0"


class Lane(Section):
    """A table inside the settings."""

    name: str
    width: int = Field(1, ge=1)


class ShopSettings(Settings):
    """Settings of an imaginary process."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="SHOP_")
    other_env: ClassVar[frozenset[str]] = frozenset({"SHOP_DEMO", "SHOP_CONFIG"})

    redis_url: str = "redis://127.0.0.1:6379/0"
    patience: Annotated[Seconds, Field(gt=timedelta(0))] = timedelta(seconds=30)
    size: int = Field(3, ge=1)
    redelivery: Redelivery = Redelivery.STREAM
    lanes: tuple[Lane, ...] = ()
    token_file: str = ""


def write(folder: Path, content: str | bytes) -> Path:
    file = folder / "shop.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a URL, which the environment names."""
    file = tmp_path / "redis-url"
    file.write_text(URL + "\n")
    monkeypatch.setenv("SHOP_REDIS_URL_FILE", str(file))
    return file


def sentence(**sources: Any) -> str:
    """Return what is said about settings that cannot work."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(ShopSettings, **sources)
    return str(caught.value)


def test_flags_beat_variables_beat_files_beat_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(ShopSettings) == ShopSettings()
    file = write(tmp_path, 'redis_url = "file"\nsize = 7\npatience = 5\n')
    monkeypatch.setenv("SHOP_REDIS_URL", "environment")
    monkeypatch.setenv("SHOP_SIZE", "8")
    arguments = {"patience": 6, "redelivery": "in-place"}
    loaded = load_settings(ShopSettings, flags={"redis_url": "flag", "size": None}, file=file, arguments=arguments)
    assert (loaded.redis_url, loaded.size, loaded.patience) == ("flag", 8, timedelta(seconds=5))
    assert loaded.redelivery is Redelivery.IN_PLACE


@pytest.mark.parametrize("value", ["30", "30s", " 30 ", 30, 30.0, timedelta(seconds=30)])
def test_durations_are_seconds(value: Any) -> None:
    assert load_settings(ShopSettings, flags={"patience": value}).patience == timedelta(seconds=30)


def test_durations_are_whole_milliseconds_for_redis() -> None:
    assert [to_ms(timedelta(seconds=value)) for value in (30, 0.0015, 0.5)] == [30_000, 2, 500]


@pytest.mark.parametrize("value", ["soon", True, -1, 0, "inf", "nan", 1e300, 10**400, [30]])
def test_what_is_no_duration_is_rejected_by_name(value: Any) -> None:
    assert "'patience'" in sentence(flags={"patience": value})


def test_a_table_is_read_with_its_own_rules(tmp_path: Path) -> None:
    file = write(tmp_path, '[[lanes]]\nname = "fast"\nwidth = 2\n')
    assert load_settings(ShopSettings, file=file).lanes == (Lane(name="fast", width=2),)
    assert "lanes.0.width" in sentence(file=write(tmp_path, '[[lanes]]\nname = "fast"\nwidth = 0\n'))
    assert "lanes.0.name" in sentence(file=write(tmp_path, "[[lanes]]\nwidth = 1\n"))
    assert "lanes.0.color" in sentence(file=write(tmp_path, '[[lanes]]\nname = "a"\ncolor = 1\n'))


def test_each_problem_is_reported_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "size = 0\n")
    assert f"in {file}" in sentence(file=file)
    said = sentence(flags={"size": 0, "patience": "soon"})
    assert ("--size" in said, "'patience'" in said) == (True, True)
    monkeypatch.setenv("SHOP_SIZE", "0")
    assert "SHOP_SIZE" in sentence()


def test_a_misspelt_setting_is_rejected_with_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Did you mean 'patience'?" in sentence(file=write(tmp_path, "patiense = 3\n"))
    monkeypatch.setenv("SHOP_PATIENSE", "3")
    assert "Did you mean 'SHOP_PATIENCE'?" in sentence()
    assert "patience, size" in did_you_mean("xyz", ["size", "patience"])


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SHOP_DEMO", "1"), ("SHOP_SIZE", ""), ("SHOP_REDIS_URL_FILE", "")],
    ids=["no setting", "empty", "empty name of a file"],
)
def test_some_variables_change_nothing(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert load_settings(ShopSettings) == ShopSettings()


def test_a_choice_that_is_none_is_rejected_with_the_choices() -> None:
    said = sentence(flags={"redelivery": "tail"})
    assert ("stream" in said, "retry-stream" in said) == (True, True)


def test_a_settings_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    for content in ("size = ", b"\xff"):
        assert "cannot read settings file" in sentence(file=write(tmp_path, content))
    assert "cannot read settings file" in sentence(file=tmp_path / "missing.toml")


# ---- files that hold one value


def test_a_value_in_a_file_counts_as_a_variable(secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, 'redis_url = "redis://from-the-file"\nsize = 5\n')
    loaded = load_settings(ShopSettings, file=file, arguments={"redis_url": "redis://from-the-program"})
    assert (loaded.redis_url, loaded.size) == (URL, 5)
    secret.unlink()
    flag = "redis://flag"
    assert load_settings(ShopSettings, flags={"redis_url": flag}, file=file).redis_url == flag, "the file is not needed"
    monkeypatch.setenv("SHOP_REDIS_URL", "redis://127.0.0.1:1/0")
    assert load_settings(ShopSettings).redis_url == "redis://127.0.0.1:1/0", "a value is stronger"


def test_an_unusable_value_names_its_place(secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret.write_bytes(b"\xff\xff")
    assert f"cannot read file {secret}, which SHOP_REDIS_URL_FILE names: 'utf-8' codec" in sentence()
    secret.unlink()
    assert sentence() == f"cannot read file {secret}, which SHOP_REDIS_URL_FILE names: No such file or directory."
    monkeypatch.delenv("SHOP_REDIS_URL_FILE")
    (size := tmp_path / "size").write_text("none")
    monkeypatch.setenv("SHOP_SIZE_FILE", str(size))
    assert "setting 'size' (in the file that SHOP_SIZE_FILE names)" in sentence()


def test_a_setting_that_is_the_name_of_a_file_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN_FILE", "/run/secrets/token")
    assert load_settings(ShopSettings).token_file == "/run/secrets/token"  # noqa: S105 - a name


@pytest.mark.parametrize("variable", ["SHOP_CONFIG_FILE", "SHOP_REDIS_URI_FILE", "SHOP_FILE"])
def test_a_misspelt_name_of_a_file_is_rejected(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "/run/secrets/any")
    assert f"unknown setting {variable!r} in the environment" in sentence()


def test_a_byte_order_mark_and_line_ends_of_windows_do_not_count(secret: Path, tmp_path: Path) -> None:
    secret.write_bytes(codecs.BOM_UTF8 + (URL + "\r\n").encode())
    file = write(tmp_path, codecs.BOM_UTF8 + "# Größe\r\nsize = 5\r\n".encode())
    loaded = load_settings(ShopSettings, file=file)
    assert (loaded.redis_url, loaded.size) == (URL, 5)
