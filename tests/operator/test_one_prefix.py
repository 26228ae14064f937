"""Both programs share a prefix, a settings file and `REDIS_URL`. Variables of other programs have no effect."""

from pathlib import Path
from typing import Any, TypeVar

import pytest
from annotated_types import BaseMetadata
from pydantic.fields import FieldInfo

from reaper.pipeline.settings import PipelineSettings
from reaper.settings import ReaperSettings
from workers.protocol.errors import ConfigurationError
from workers.runtime.options import bare_type
from workers.runtime.settings import DEFAULT_URL, ProgramSettings, load_settings
from workers.settings import WorkerSettings

PROGRAMS = pytest.mark.parametrize("kind", [ReaperSettings, WorkerSettings])
OURS = pytest.mark.parametrize("kind", [ReaperSettings, WorkerSettings, PipelineSettings])
SHARED = "redis://:pw@shared:6379/0"
PLACE: dict[str, Any] = {"stream": "orders", "group": "billing"}
SettingsT = TypeVar("SettingsT", bound=ProgramSettings)


def load(kind: type[SettingsT], file: Path | None = None) -> SettingsT:
    return load_settings(kind, file=file, arguments=PLACE if kind is WorkerSettings else None)


@pytest.fixture
def one_file(tmp_path: Path) -> Path:
    """A settings file for both programs."""
    file = tmp_path / "reaper.toml"
    file.write_text('max_deliveries = 7\nlease_ttl = 20\nconcurrency = 9\n[[groups]]\nstream = "a"\ngroup = "b"\n')
    return file


def test_settings_of_both_programs_may_stand_in_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GROUPS": "a/b", "LEASE_TTL": "20", "CONCURRENCY": "9", "MAX_DELIVERIES": "7"}.items():
        monkeypatch.setenv(f"REAPER_{name}", value)
    monkeypatch.setenv("REAPER_LAKE", "/data/lake")
    reaper, worker = load(ReaperSettings), load(WorkerSettings)
    assert load(PipelineSettings).lake == "/data/lake"
    assert (reaper.watched[0].keys.name, worker.concurrency) == ("a/b", 9)
    assert reaper.max_deliveries == worker.max_deliveries == 7


def test_settings_of_both_programs_may_stand_in_one_file(one_file: Path) -> None:
    reaper, worker = load(ReaperSettings, one_file), load(WorkerSettings, one_file)
    assert (reaper.watched[0].keys.name, worker.concurrency) == ("a/b", 9)
    assert reaper.max_deliveries == worker.max_deliveries == 7


@PROGRAMS
@pytest.mark.parametrize(("typo", "meant"), [("LEASE_TLL", "LEASE_TTL"), ("CONCURENCY", "CONCURRENCY")])
def test_a_setting_that_neither_program_has_is_rejected(
    kind: type[ProgramSettings], typo: str, meant: str, monkeypatch: pytest.MonkeyPatch, one_file: Path
) -> None:
    one_file.write_text(f"{typo.lower()} = 1\n")
    with pytest.raises(
        ConfigurationError, match=f"unknown setting '{typo.lower()}' in .*. Did you mean '{meant.lower()}'"
    ):
        load(kind, one_file)
    monkeypatch.setenv(f"REAPER_{typo}", "1")
    with pytest.raises(ConfigurationError, match=f"unknown setting 'REAPER_{typo}' .*. Did you mean 'REAPER_{meant}'"):
        load(kind)


def test_a_setting_that_both_programs_have_takes_the_same_values() -> None:
    shared = ReaperSettings.model_fields.keys() & WorkerSettings.model_fields.keys()
    kinds = (ReaperSettings, WorkerSettings)
    fields = {name: [kind.model_fields[name] for kind in kinds] for name in shared}
    assert {"visibility_timeout", "redelivery", "health_port", "name"} < shared
    for name, (first, second) in fields.items():
        assert (bare_type(first.annotation), _limits(first)) == (bare_type(second.annotation), _limits(second)), name


def _limits(field: FieldInfo) -> list[BaseMetadata]:
    return [rule for rule in field.metadata if isinstance(rule, BaseMetadata)]


@PROGRAMS
def test_variables_of_other_programs_have_no_effect(
    kind: type[ProgramSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = load(kind)
    for name in ("TIMEOUT", "CONCURRENCY", "REDIS_URL", "TYPO", "MAX_DELIVERIES", "HEALTH_PORT"):
        for prefix in ("WORKER_", "WORKERS_", "", "STREAM_REAPER_"):
            if prefix + name != "REDIS_URL":
                monkeypatch.setenv(prefix + name, "120")
    assert load(kind) == usual


@PROGRAMS
def test_variables_that_kubernetes_sets_for_a_service_have_no_effect(
    kind: type[ProgramSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = load(kind)
    for service in ("REAPER", "REAPER_METRICS"):
        for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR"):
            monkeypatch.setenv(f"{service}_{name}", "10.0.0.1")
    assert load(kind) == usual


@OURS
def test_the_shared_address_counts_where_nothing_else_names_one(
    kind: type[ProgramSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(kind).redis_url == DEFAULT_URL
    monkeypatch.setenv("REDIS_URL", SHARED)
    assert load(kind).redis_url == SHARED
    assert (kind(**PLACE) if kind is WorkerSettings else kind()).redis_url == SHARED


@OURS
def test_the_shared_address_is_weaker_than_any_other(
    kind: type[ProgramSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REDIS_URL", SHARED)
    place = PLACE if kind is WorkerSettings else {}
    assert load_settings(kind, arguments={**place, "redis_url": "redis://argument"}).redis_url == "redis://argument"
    file = tmp_path / "settings.toml"
    file.write_text('redis_url = "redis://file"\n')
    assert load(kind, file).redis_url == "redis://file"
    monkeypatch.setenv("REAPER_REDIS_URL", "redis://own")
    assert load(kind).redis_url == "redis://own"
    assert load_settings(kind, arguments=place, flags={"redis_url": "redis://flag"}).redis_url == "redis://flag"


def test_what_goes_with_an_address_goes_with_the_shared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "rediss://shared:6379/0")
    monkeypatch.setenv("REAPER_REDIS_CA_FILE", "/ca.pem")
    assert load(ReaperSettings).redis_url == "rediss://shared:6379/0?ssl_ca_certs=%2Fca.pem"
