from datetime import timedelta
from pathlib import Path

import pytest

from workers import Worker, WorkerSettings
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import load_settings


def load(**flags: object) -> WorkerSettings:
    return load_settings(WorkerSettings, flags={"stream": "orders", "group": "billing", **flags})


def test_only_stream_and_group_have_to_be_given() -> None:
    settings = load()

    assert (settings.keys.pair, settings.concurrency, settings.drain_timeout) == (
        "orders/billing",
        64,
        timedelta(seconds=30),
    )


def test_the_group_settings_are_not_set_by_default() -> None:
    settings = load()

    assert (settings.visibility_timeout, settings.max_deliveries, settings.redelivery) == (None, None, None)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"concurrency": "0"}, "concurrency"),
        ({"name": "a,b"}, "without commas"),
        ({"name": "a\nb"}, "printable"),
        ({"group_start": "yesterday"}, "Write '0', '\\$' or an entry ID"),
        ({"group_start": "18446744073709551616"}, "Write '0', '\\$' or an entry ID"),
        ({"group_start": "1-18446744073709551616"}, "Write '0', '\\$' or an entry ID"),
        ({"group_start": "٣"}, "Write '0', '\\$' or an entry ID"),
        ({"visibility_timeout": "0.09"}, "'visibility_timeout' .* at least 0.1s"),
        ({"journal_maxlen": "99999999999999999999999"}, "'journal_maxlen' .* less than or equal to 1000000000000"),
        ({"visibility_timeout": "0"}, "visibility_timeout"),
        ({"stream": "{orders}"}, "only a hash tag"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_sentence(flags: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        load(**flags)


def test_the_name_is_the_configured_one_or_that_of_the_host() -> None:
    assert load(name="billing-1").base_name == "billing-1"
    assert load().base_name


def test_flags_beat_the_environment_beats_the_file_beats_arguments_beats_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_an_argument_that_is_no_setting_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'concurrency'"):
        _ = Worker("orders", "billing", concurency=3).settings


def test_settings_and_arguments_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="settings or arguments"):
        Worker("orders", settings=WorkerSettings(stream="orders", group="billing"))


def test_a_worker_without_a_stream_says_which_setting_is_missing() -> None:
    with pytest.raises(ConfigurationError, match="'stream' is missing"):
        _ = Worker().settings


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_CONCURENCY", "3")

    with pytest.raises(ConfigurationError, match="Did you mean 'REAPER_CONCURRENCY'"):
        load()
