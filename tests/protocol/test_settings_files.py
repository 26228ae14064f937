"""A variable of the environment may name a file that holds a setting's value: so passwords get in."""

import codecs
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import Settings, load_settings

URL = "redis://worker:p%40ss@redis.internal:6379/0"


class ShopSettings(Settings):
    """Settings of an imaginary process; one of them is the name of a file."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="SHOP_")
    other_env: ClassVar[frozenset[str]] = frozenset({"SHOP_CONFIG"})

    redis_url: str = "redis://127.0.0.1:6379/0"
    size: int = Field(3, ge=1)
    token_file: str = ""


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


def test_the_value_is_read_from_the_file_without_its_line_end(secret: Path) -> None:
    assert secret.read_text().endswith("\n")
    assert load_settings(ShopSettings) == ShopSettings(redis_url=URL)


@pytest.mark.usefixtures("secret")
def test_it_is_as_strong_as_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text('redis_url = "redis://from-the-file"\nsize = 5\n')
    loaded = load_settings(ShopSettings, file=file, arguments={"redis_url": "redis://from-the-program"})
    assert (loaded.redis_url, loaded.size) == (URL, 5)
    assert load_settings(ShopSettings, flags={"redis_url": "redis://flag"}, file=file).redis_url == "redis://flag"


def test_a_flag_makes_the_file_superfluous(secret: Path) -> None:
    secret.unlink()
    assert load_settings(ShopSettings, flags={"redis_url": "redis://flag"}).redis_url == "redis://flag"


@pytest.mark.usefixtures("secret")
def test_a_value_is_stronger_than_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_REDIS_URL", "redis://127.0.0.1:1/0")
    assert load_settings(ShopSettings).redis_url == "redis://127.0.0.1:1/0"


def test_a_file_that_is_not_there_is_said(secret: Path) -> None:
    secret.unlink()
    assert sentence() == f"cannot read file {secret}, which SHOP_REDIS_URL_FILE names: No such file or directory."


def test_a_file_without_text_is_said(secret: Path) -> None:
    secret.write_bytes(b"\xff\xff")
    assert f"cannot read file {secret}, which SHOP_REDIS_URL_FILE names: 'utf-8' codec" in sentence()


def test_a_value_that_cannot_be_is_said_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "size"
    file.write_text("none")
    monkeypatch.setenv("SHOP_SIZE_FILE", str(file))
    assert "setting 'size' (in the file that SHOP_SIZE_FILE names)" in sentence()


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_REDIS_URL_FILE", "")
    assert load_settings(ShopSettings) == ShopSettings()


def test_a_setting_that_is_the_name_of_a_file_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN_FILE", "/run/secrets/token")
    assert load_settings(ShopSettings).token_file == "/run/secrets/token"  # noqa: S105 - a name


@pytest.mark.parametrize("variable", ["SHOP_CONFIG_FILE", "SHOP_REDIS_URI_FILE", "SHOP_FILE"])
def test_a_misspelt_variable_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "/run/secrets/any")
    assert f"unknown setting {variable!r} in the environment" in sentence()


# ---- files of Windows editors


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_byte_order_mark_and_other_line_ends_do_not_count(
    mark: bytes, line_end: str, secret: Path, tmp_path: Path
) -> None:
    secret.write_bytes(mark + (URL + line_end).encode())
    file = tmp_path / "shop.toml"
    file.write_bytes(mark + line_end.join(["# Größe", "size = 5", ""]).encode())
    loaded = load_settings(ShopSettings, file=file)
    assert (loaded.redis_url, loaded.size) == (URL, 5)
