from datetime import timedelta
from pathlib import Path

import pytest

from reaper.settings import ReaperSettings
from workers import Worker, WorkerSettings
from workers.protocol.credentials import credentials_of
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import DEFAULT_URL, load_settings


def load(**flags: str | int) -> WorkerSettings:
    return load_settings(WorkerSettings, flags={"stream": "orders", "group": "billing", **flags})


def test_only_stream_and_group_have_to_be_given_and_group_settings_are_not_set() -> None:
    settings = load()
    assert (settings.keys.name, settings.concurrency, settings.drain_timeout) == (
        "orders/billing", 64, timedelta(seconds=30),
    )  # fmt: skip
    assert (settings.visibility_timeout, settings.max_deliveries, settings.redelivery) == (None, None, None)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"concurrency": "0"}, "concurrency"),
        ({"name": "a,b"}, "without commas"),
        ({"group_start": "yesterday"}, "Write '0', '\\$' or an entry ID"),
        ({"group_start": "18446744073709551616"}, "Write '0', '\\$' or an entry ID"),
        ({"group_start": "٣"}, "Write '0', '\\$' or an entry ID"),
        ({"visibility_timeout": "0.09"}, "'visibility_timeout' .* at least 0.1s"),
        ({"journal_maxlen": "99999999999999999999999"}, "'journal_maxlen' .* less than or equal to 1000000000000"),
        ({"stream": "{orders}"}, "only a hash tag"),
    ],
)
def test_settings_that_cannot_work_are_rejected_with_a_sentence(flags: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        load(**flags)


def test_the_name_is_the_configured_one_or_that_of_the_host() -> None:
    assert load(name="billing-1").base_name == "billing-1"
    assert load().base_name


def test_flags_beat_variables_beat_files_beat_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text("concurrency = 3\njournal_maxlen = 300\ndrain_timeout = 3\n")
    monkeypatch.setenv("REAPER_CONCURRENCY", "2")
    monkeypatch.setenv("REAPER_JOURNAL_MAXLEN", "200")
    worker = Worker("orders", "billing", concurrency=4, journal_maxlen=400, drain_timeout=4, max_deliveries=4)

    worker.configure(flags={"concurrency": "1"}, file=file)

    settings = worker.settings
    assert (settings.concurrency, settings.journal_maxlen, settings.max_deliveries) == (1, 200, 4)
    assert settings.drain_timeout.total_seconds() == 3
    assert settings.backoff_cap.total_seconds() == 300


def test_settings_given_as_a_whole_are_overridden_by_flags_only_where_they_speak() -> None:
    worker = Worker(settings=WorkerSettings(stream="orders", group="billing", concurrency=5, drain_timeout=7))

    worker.configure(flags={"concurrency": "6"})

    assert (worker.settings.concurrency, worker.settings.drain_timeout) == (6, timedelta(seconds=7))


def test_arguments_that_cannot_work_are_rejected_with_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'concurrency'"):
        _ = Worker("orders", "billing", concurency=3).settings
    with pytest.raises(ConfigurationError, match="settings or arguments"):
        Worker("orders", settings=WorkerSettings(stream="orders", group="billing"))
    with pytest.raises(ConfigurationError, match="'stream' is missing"):
        _ = Worker().settings


def test_a_misspelt_variable_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_CONCURENCY", "3")

    with pytest.raises(ConfigurationError, match="Did you mean 'REAPER_CONCURRENCY'"):
        load()


# ---- the address of Redis


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
