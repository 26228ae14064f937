"""The settings file that a newcomer begins with: written once, never changed by us. The text of it is pure."""

import json
from collections.abc import Iterable
from pathlib import Path

from reaper.settings import ReaperSettings, WatchedGroup
from workers.protocol.address import holds_login
from workers.protocol.errors import ConfigurationError
from workers.runtime.quantities import written

_OWNER_ONLY = 0o600
_NAMESPACE = ReaperSettings.model_fields["namespace"].default


def write_settings(file: Path, settings: ReaperSettings) -> None:
    """Write a file that is not there yet, for its owner to read. Raises ConfigurationError."""
    try:
        file.touch(mode=_OWNER_ONLY, exist_ok=False)
        file.write_text(settings_text(str(file), settings), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write settings file {file}: {error.strerror}.") from error


def settings_text(name: str, settings: ReaperSettings) -> str:
    """Return what stands in a file of that name. A password never does."""
    lines = [
        f"# reaper run --config {name}",
        "# SIGHUP reads the groups again. Flags and the environment (REAPER_…) override this file.",
    ]
    if not holds_login(settings.redis_url):
        lines.append(f"redis_url = {_quoted(settings.redis_url)}")
    else:
        lines.append("# redis_url holds a password: it comes from REAPER_REDIS_URL, or a file (REAPER_REDIS_URL_FILE).")
    if settings.namespace != _NAMESPACE:
        lines.append(f"namespace = {_quoted(settings.namespace)}")
    return "\n".join([*lines, *group_tables(settings.watched), ""])


def group_tables(groups: Iterable[WatchedGroup]) -> list[str]:
    """Return the lines that name these groups in a settings file."""
    return [line for group in groups for line in _table(group)]


def _table(group: WatchedGroup) -> list[str]:
    return [
        "",
        "[[groups]]",
        f"stream = {_quoted(group.stream)}",
        f"group = {_quoted(group.group)}",
        f"visibility_timeout = {_quoted(written(group.visibility_timeout))}  # longer than the slowest job",
        f"max_deliveries = {group.max_deliveries}  # of a job; then it is a dead letter",
        f"redelivery = {_quoted(group.redelivery)}",
    ]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # which TOML reads, but for control characters: no name has any
