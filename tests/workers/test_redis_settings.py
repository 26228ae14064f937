"""The files of certificates are settings, and become options of the address."""

from pathlib import Path

import pytest

from reaper.settings import ReaperSettings
from workers import WorkerSettings
from workers.protocol.credentials import credentials_of
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import DEFAULT_URL, load_settings


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
    )
    assert settings.redis_url == (
        "rediss://h/1?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_certfile=%2Fetc%2Four%20cert.pem&ssl_keyfile=%2Fetc%2Fkey.pem"
    )
    assert WorkerSettings(**settings.model_dump()).redis_url == settings.redis_url, "made once, whoever copies it"


def test_an_address_from_a_file_is_read_again_at_each_connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text("rediss+sentinel://u:p@h1,h2/m/0\n")
    monkeypatch.setenv("REAPER_REDIS_URL_FILE", str(url))
    monkeypatch.setenv("REAPER_REDIS_CA_FILE", "/etc/ca.pem")
    found = credentials_of(load_settings(ReaperSettings).redis_url)
    assert found is not None
    assert found.file == url


def test_certificates_need_an_address_over_tls() -> None:
    sentence = "redis_ca_file needs TLS. Set redis_url to rediss://"
    with pytest.raises(ConfigurationError, match=sentence):
        load(redis_ca_file="/ca.pem")
