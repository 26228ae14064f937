"""Settings from flags, environment and a TOML file, in that order of strength, with errors people can act on.

A variable can name a file with the value, for example a secret (``REAPER_REDIS_URL_FILE``).
"""

import os
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from numbers import Real
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from workers.protocol.address import SHARED_URL, with_options
from workers.protocol.credentials import came_from
from workers.protocol.errors import ConfigurationError
from workers.runtime.quantities import A_DURATION, seconds_in, written
from workers.runtime.settings_errors import did_you_mean, explain

LONGEST = timedelta(days=3660)
"""The longest duration. Longer ones are mistakes, and scripts cannot represent them exactly."""
SHORTEST_INTERVAL = timedelta(milliseconds=10)
"""The shortest interval. A shorter one would send thousands of requests per second."""
SHORTEST_VISIBILITY = timedelta(milliseconds=100)
"""The shortest visibility timeout. Any pause of a process would exceed a shorter one."""


def _read_seconds(value: object) -> timedelta:
    """Read a number of seconds, or a text with a unit, for example ``1.5s``."""
    number = seconds_in(value) if isinstance(value, str) else value
    if isinstance(number, timedelta):
        number = number.total_seconds()
    longest = LONGEST.total_seconds()
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not -longest <= number <= longest:
        raise ValueError(f"Write {A_DURATION}, and at most {LONGEST.days}d")
    return timedelta(seconds=number)


FILE_SUFFIX = "_FILE"
"""The end of a variable that names a file with the value. The variable with the value itself is stronger."""

ADDRESS = "redis_url"
"""The setting that can contain a password. From a file, it is read again for each connection."""

Duration = float | timedelta
"""A duration in a program, as seconds or as a timedelta."""
Seconds = Annotated[timedelta, BeforeValidator(_read_seconds)]
HealthHost = Annotated[
    str, Field(description="Address that `health_port` is bound to. `0.0.0.0` accepts connections from other machines.")
]
JournalMaxlen = Annotated[
    int,
    Field(
        ge=100,
        le=10**12,
        description="About how many entries a journal keeps. An entry holds the events of up to 200 jobs.",
    ),
]


def seconds(default: float | None, description: str, *, least: timedelta = timedelta(milliseconds=1)) -> Any:
    """Return a field for a duration. ``default`` is in seconds, or None. ``least`` is the shortest duration."""

    def long_enough(value: timedelta | None) -> timedelta | None:
        if value is not None and value < least:
            raise ValueError(f"Write a duration of at least {written(least)}")
        return value

    start = None if default is None else timedelta(seconds=default)
    field: Any = Field(default=start, description=description, json_schema_extra={"shortest": written(least)})
    field.metadata.append(AfterValidator(long_enough))  # the sentence of ``ge`` has another notation for durations
    return field


def to_ms(duration: timedelta) -> int:
    """Return whole milliseconds, the unit of every Redis call."""
    return round(duration.total_seconds() * 1000)


def duration_in_ms(name: str, duration: Duration, least_s: float = 0) -> int:
    """Return a program's argument ``name`` in ms. Raises ValueError if it is too short or not a number."""
    longest_s = LONGEST.total_seconds()
    seconds: Any = duration.total_seconds() if isinstance(duration, timedelta) else duration
    is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if not is_number or not least_s <= seconds <= longest_s:  # false for nan
        raise ValueError(f"{name} cannot be {duration!r:.100}. Give seconds from {least_s:g} to {longest_s:.0f}.")
    return to_ms(timedelta(seconds=float(seconds)))


class Settings(BaseSettings):
    """Base of both processes' settings. Build instances by `load_settings`, or directly in a program.

    Write ``Field(default=…)``, because type checkers without pydantic's plugin require fields with a bare default.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_ignore_empty=True,
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    other_env: ClassVar[frozenset[str]] = frozenset()
    """Environment variables with the prefix that are no settings (the demo's, for example)."""


class Section(Settings):
    """A table inside the settings, read from its parent only (never from the environment by itself)."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True
    )

    @classmethod
    def settings_customise_sources(cls, *_: Any, **sources: Any) -> tuple[Any]:
        """Take values from the constructor alone."""
        return (sources["init_settings"],)


# ---- the address of Redis, which all programs have

DEFAULT_URL = "redis://127.0.0.1:6379/0"
PREFIX = "REAPER_"
"""The prefix of the environment variables of all our programs."""
_PROGRAMS = (
    "reaper.settings:ReaperSettings",
    "workers.settings:WorkerSettings",
    "reaper.pipeline.settings:PipelineSettings",
)
"""Programs whose settings may be in one environment and in one file."""

_TLS = {
    "redis_ca_file": "ssl_ca_certs",
    "redis_cert_file": "ssl_certfile",
    "redis_key_file": "ssl_keyfile",
}
"""Options of an address by the settings that set them."""


class ProgramSettings(Settings):
    """Base of the settings of `reaper`, `worker` and `reaper pipeline`, which share prefix, file and meanings."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix=PREFIX)
    other_env: ClassVar[frozenset[str]] = frozenset({f"{PREFIX}FAILPOINTS", f"{PREFIX}CONFIG"})

    redis_url: str = Field(
        default=DEFAULT_URL,
        repr=False,
        description="Address of Redis, of its Sentinels, or of nodes of a cluster. If it comes from a file, its "
        "password is read again at each connect.",
    )
    redis_ca_file: str = Field(
        default="",
        description="PEM file of authorities that sign the certificates of Redis and its Sentinels, in addition to "
        "those that the system trusts.",
    )
    redis_cert_file: str = Field(
        default="", description="PEM file of the client certificate, if Redis asks for one. Read at each connect."
    )
    redis_key_file: str = Field(default="", description="PEM file of the key to `redis_cert_file`.")

    @model_validator(mode="before")
    @classmethod
    def _one_address(cls, given: Any) -> Any:
        """Take the address of `REDIS_URL` if there is no other, and add the certificate files as its options."""
        if not isinstance(given, dict) or not isinstance(given.get(ADDRESS, DEFAULT_URL), str):
            return given  # pydantic rejects it
        if ADDRESS not in given and os.environ.get(SHARED_URL):
            given = {**given, ADDRESS: os.environ[SHARED_URL]}
        url = given.get(ADDRESS, cls.model_fields[ADDRESS].default).strip()
        scheme, _, rest = url.partition("://")
        options = {option: given[name] for name, option in _TLS.items() if given.get(name)}
        if options and not scheme.startswith("rediss"):
            name = next(name for name, option in _TLS.items() if option in options)
            raise ValueError(f"{name} needs TLS. Set redis_url to rediss://, rediss+sentinel:// or rediss+cluster://")
        known = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
        new = {option: value for option, value in options.items() if (option, value) not in known}
        return {**given, ADDRESS: with_options(url, new)} if new or ADDRESS in given else given


SettingsT = TypeVar("SettingsT", bound=Settings)


def load_settings(
    kind: type[SettingsT],
    *,
    flags: Mapping[str, Any] | None = None,
    file: Path | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> SettingsT:
    """Build ``kind`` from flags, the environment, the file and a program's arguments. Raises ConfigurationError."""
    given = {name: value for name, value in (flags or {}).items() if value not in (None, ())}
    from_file = _read_file(file, kind) if file else {}
    values = {**(arguments or {}), **from_file}
    sources = dict.fromkeys(from_file, f"in {file}")
    prefix, address_file = kind.model_config.get("env_prefix", ""), None
    if prefix:
        _check_environment(kind, prefix)
    for name in kind.model_fields.keys() - given if prefix else ():
        variable = f"{prefix}{name.upper()}"
        if value := os.environ.get(variable):
            values[name], sources[name] = value, f"in the environment as {variable}"
        elif named := os.environ.get(f"{variable}{FILE_SUFFIX}"):
            values[name], sources[name] = (
                _read_value(f"{variable}{FILE_SUFFIX}", Path(named)),
                f"in the file that {variable}{FILE_SUFFIX} names",
            )
            address_file = Path(named) if name == ADDRESS else address_file
    values |= given
    sources |= {name: f"as flag --{name.replace('_', '-')}" for name in given}
    try:
        settings = kind(**values)
    except ValidationError as error:
        raise ConfigurationError(*explain(kind, error, sources)) from error
    if address_file:
        came_from(getattr(settings, ADDRESS), address_file)
    return settings


def _read_file(file: Path, kind: type[Settings]) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", error)
        raise ConfigurationError(f"cannot read settings file {file}: {cause}. Correct the file or its path.") from error
    for name in values:
        if name not in kind.model_fields and name not in (known := _all_settings(kind)):
            raise ConfigurationError(f"unknown setting {name!r} in {file}{did_you_mean(name, known)}")
    return {name: value for name, value in values.items() if name in kind.model_fields}


def _read_value(variable: str, file: Path) -> str:
    """Return the stripped content of the file that ``variable`` names. Raises ConfigurationError."""
    try:
        return file.read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", error)
        raise ConfigurationError(f"cannot read file {file}, which {variable} names: {cause}.") from error


def _check_environment(kind: type[Settings], prefix: str) -> None:
    """Reject misspelled variables, because pydantic-settings ignores them silently."""
    # Kubernetes sets variables for each Service (`REAPER_PORT_8080_TCP`).
    services = [name.removesuffix("_SERVICE_HOST") for name in os.environ if name.endswith("_SERVICE_HOST")]
    others = tuple(f"{service}_{part}" for service in services for part in ("SERVICE_", "PORT"))
    for variable in os.environ:
        if not variable.startswith(prefix) or variable.startswith(others) or variable in kind.other_env:
            continue
        name = variable.removeprefix(prefix).lower()
        names = {name, name.removesuffix(FILE_SUFFIX.lower())}
        if names.isdisjoint(kind.model_fields) and names.isdisjoint(all_settings := _all_settings(kind)):
            known = {f"{prefix}{name.upper()}" for name in all_settings} | kind.other_env
            raise ConfigurationError(f"unknown setting {variable!r} in the environment{did_you_mean(variable, known)}")


def _all_settings(kind: type[Settings]) -> set[str]:
    """Return the names of ``kind``'s settings, and of those of programs that share its environment and file."""
    programs = _PROGRAMS if issubclass(kind, ProgramSettings) else ()
    beside = (resolve_name(program).model_fields for program in programs)
    return set(kind.model_fields).union(*beside)
