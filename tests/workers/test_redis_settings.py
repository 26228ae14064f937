"""Certificates, keys and the Sentinels' login are settings, and become parts of the one address."""

from pathlib import Path

import pytest

from reaper.settings import ReaperSettings
from workers import WorkerSettings
from workers.protocol.address import parse_address, shown_address
from workers.protocol.address_files import file_of
from workers.protocol.errors import ConfigurationError
from workers.runtime.redis_settings import DEFAULT_URL
from workers.runtime.settings import load_settings


def load(**flags: str) -> WorkerSettings:
    return load_settings(WorkerSettings, flags={"stream": "orders", "group": "billing", **flags})


def test_what_is_not_given_leaves_the_address_as_it_is() -> None:
    assert load().redis_url == DEFAULT_URL
    assert load(redis_url="redis://h?client_name=x").redis_url == "redis://h?client_name=x"


def test_certificates_become_options_of_the_address() -> None:
    settings = load(
        redis_url="rediss://h/1",
        redis_ca_file="/etc/ca.pem",
        redis_cert_file="/etc/our cert.pem",
        redis_key_file="/etc/key.pem",
        redis_key_password="p&=?",  # noqa: S106
    )
    assert settings.redis_url == (
        "rediss://h/1?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_certfile=%2Fetc%2Four%20cert.pem&ssl_keyfile=%2Fetc%2Fkey.pem"
        "&ssl_password=p%26%3D%3F"
    )
    assert "p%26" not in shown_address(settings.redis_url)
    assert WorkerSettings(**settings.model_dump()).redis_url == settings.redis_url, "made once, whoever copies it"


def test_the_sentinels_login_comes_from_files_as_any_secret_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    password, url = tmp_path / "password", tmp_path / "url"
    password.write_text("s3cret&\n")
    url.write_text("redis+sentinel://u:p@h1,h2/m/0\n")
    monkeypatch.setenv("REAPER_SENTINEL_PASSWORD_FILE", str(password))
    monkeypatch.setenv("REAPER_SENTINEL_USERNAME", "watcher")
    monkeypatch.setenv("REAPER_REDIS_URL_FILE", str(url))
    settings = load_settings(ReaperSettings)
    login = {"username": "watcher", "password": "s3cret&"}
    assert dict(parse_address(settings.redis_url).sentinel_login) == login
    assert file_of(settings.redis_url) == url, "its password is read again at each connect"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"redis_ca_file": "/ca.pem"}, "redis_ca_file is for a redis_url that begins with rediss://"),
        ({"redis_key_password": "secret"}, "redis_key_password is for a redis_url that begins with rediss://"),
        ({"sentinel_password": "secret"}, r"sentinel_password is for a redis_url that begins with redis\+sentinel://"),
        ({"redis_url": "rediss://h", "sentinel_username": "u"}, r"sentinel_username is for .* redis\+sentinel://"),
    ],
)
def test_what_the_address_has_no_use_for_is_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        load(**given)
    assert "secret" not in str(caught.value)
