"""Settings from flags, environment and a TOML file, in that order of strength, with errors people can act on."""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from workers.protocol.errors import ConfigurationError


def _read_seconds(value: object) -> object:
    """Read ``30``, ``"30"`` and ``"1.5"`` as seconds: pydantic refuses plain numbers in strings for a timedelta."""
    if isinstance(value, bool):
        raise ValueError("write a number of seconds, such as 30 or 0.5")  # noqa: TRY004 - pydantic wants ValueError
    if isinstance(value, (int, float)):
        return timedelta(seconds=value)
    if isinstance(value, str):
        try:
            return timedelta(seconds=float(value.strip().removesuffix("s")))
        except ValueError:
            return value  # ISO 8601 durations, or pydantic's own error
    return value


Seconds = Annotated[timedelta, BeforeValidator(_read_seconds)]


def to_ms(duration: timedelta) -> int:
    """Return whole milliseconds, the unit of every Redis call."""
    return round(duration.total_seconds() * 1000)


class Settings(BaseSettings):
    """Base of both processes' settings. Build instances by `load_settings`, or directly in a program."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True, validate_default=True)

    other_env: ClassVar[frozenset[str]] = frozenset()
    """Environment variables with the prefix that are no settings (the demo's, for example)."""


class Section(Settings):
    """A table inside the settings, read from its parent only (never from the environment by itself)."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the constructor alone."""
        return (init_settings,)


SettingsT = TypeVar("SettingsT", bound=Settings)


def load_settings(
    kind: type[SettingsT], *, flags: Mapping[str, Any] | None = None, file: Path | None = None
) -> SettingsT:
    """Build ``kind`` from ``flags`` (unset ones are None), the environment and ``file``.

    Raises ConfigurationError with one sentence per problem: which setting, why, what to write instead.
    """
    given = {name: value for name, value in (flags or {}).items() if value not in (None, ())}
    from_file = _read_file(file, kind) if file else {}
    prefix = kind.model_config.get("env_prefix", "")
    _check_environment(kind, prefix)
    in_environment = {name for name in kind.model_fields if os.environ.get(f"{prefix}{name.upper()}")}
    # Weakest first: a value from the file counts only where neither a flag nor the environment speaks.
    values = {name: value for name, value in from_file.items() if name not in in_environment} | given
    try:
        return kind(**values)
    except ValidationError as error:
        sources = {
            **dict.fromkeys(from_file, f"in {file}"),
            **{name: f"in the environment as {prefix}{name.upper()}" for name in in_environment},
            **{name: f"as flag --{name.replace('_', '-')}" for name in given},
        }
        raise ConfigurationError(_explain(error, sources)) from error


def _read_file(file: Path, kind: type[Settings]) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"settings file {file} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"settings file {file} is no valid TOML: {error}.") from error
    for name in values:
        if name not in kind.model_fields:
            raise ConfigurationError(f"unknown setting {name!r} in {file}{did_you_mean(name, kind.model_fields)}")
    return values


def _check_environment(kind: type[Settings], prefix: str) -> None:
    """Refuse misspelt variables: pydantic-settings ignores them silently."""
    known = {f"{prefix}{name.upper()}" for name in kind.model_fields} | kind.other_env
    for variable in os.environ:
        if prefix and variable.startswith(prefix) and variable not in known:
            raise ConfigurationError(f"unknown setting {variable!r} in the environment{did_you_mean(variable, known)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: a suggestion, or the list."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f": did you mean {near[0]!r}?" if near else f": known are {', '.join(names)}."


def _explain(error: ValidationError, sources: Mapping[str, str]) -> str:
    sentences = []
    for problem in error.errors(include_url=False):
        path = [str(part) for part in problem["loc"]]
        message = str(problem["msg"]).removeprefix("Value error, ")
        if not path:  # a relation between settings: the message names them
            sentences.append(message)
            continue
        where = f" ({sources[path[0]]})" if path[0] in sources else ""
        name = ".".join(path)
        if problem["type"] == "extra_forbidden":
            sentences.append(f"unknown setting {name!r}{where}: remove it or correct its spelling.")
        elif problem["type"] == "missing":
            sentences.append(f"setting {name!r} is missing: give it in the file, the environment or as a flag.")
        else:
            sentences.append(f"setting {name!r}{where} cannot be {problem.get('input')!r}: {message}.")
    return "\n".join(sentences)


__all__ = [
    "Seconds",
    "Section",
    "Settings",
    "did_you_mean",
    "load_settings",
    "to_ms",
]
