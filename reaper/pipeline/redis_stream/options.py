"""The options of ``redis-stream``: read, checked, and never quoted where one may hold a password."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from reaper.pipeline.redis_stream.errors import NAME, RedisStreamError

_OPTIONS: Mapping[str, str] = {
    "url": "",
    "urlEnv": "",
    "urlFile": "",
    "stream": "",
    "streamPattern": "",
    "startingId": "",
    "startingTimestamp": "",
    "endingId": "latest",
    "maxEntriesPerTrigger": "",
    "partitions": "1",
    "pageSize": "1000",
    "batchSize": "10000",
    "failOnDataLoss": "true",
    "failOnMissing": "true",
    "ignoreDeletes": "false",
    "fieldsAs": "",
    "idColumn": "id",
    "streamColumn": "",
    "retrySeconds": "300",
    "discoverSeconds": "10",
    "maxlen": "",
    "approximate": "true",
}
_SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode", "numrows", "truncate"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS_AS = ("columns", "map", "json")


@dataclass(frozen=True)
class Options:
    """What the user has set, read and checked."""

    url: str = field(repr=False)
    streams: tuple[str, ...]
    pattern: str
    starting: str
    ending: str
    max_entries: int | None
    partitions: int
    page_size: int
    batch_size: int
    fail_on_data_loss: bool
    fail_on_missing: bool
    ignore_deletes: bool
    fields_as: str
    id_column: str
    stream_column: str
    retry_s: float
    discover_s: float
    maxlen: int | None
    approximate: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Read options, whose names are in lower case. Raises RedisStreamError, which never quotes ``url``."""
        _refuse_unknown(given)
        values = {name: str(given.get(name.lower(), default)).strip() for name, default in _OPTIONS.items()}
        if values["fieldsAs"] not in ("", *_FIELDS_AS):
            raise RedisStreamError(
                f"option fieldsAs is {values['fieldsAs']!r}: it must be one of {', '.join(_FIELDS_AS)}."
            )
        return cls(
            url=_find_url(values["url"], values["urlEnv"], values["urlFile"]),
            streams=tuple(name.strip() for name in values["stream"].split(",") if name.strip()),
            pattern=values["streamPattern"],
            starting=_starting(values["startingId"], values["startingTimestamp"]),
            ending=_bound("endingId", values["endingId"]),
            max_entries=_number("maxEntriesPerTrigger", values["maxEntriesPerTrigger"]),
            partitions=_number("partitions", values["partitions"]) or 1,
            page_size=_number("pageSize", values["pageSize"]) or 1,
            batch_size=_number("batchSize", values["batchSize"]) or 1,
            fail_on_data_loss=_flag("failOnDataLoss", values["failOnDataLoss"]),
            fail_on_missing=_flag("failOnMissing", values["failOnMissing"]),
            ignore_deletes=_flag("ignoreDeletes", values["ignoreDeletes"]),
            fields_as=values["fieldsAs"],
            id_column=values["idColumn"],
            stream_column=values["streamColumn"],
            retry_s=_seconds("retrySeconds", values["retrySeconds"]),
            discover_s=_seconds("discoverSeconds", values["discoverSeconds"]),
            maxlen=_number("maxlen", values["maxlen"]),
            approximate=_flag("approximate", values["approximate"]),
        )

    @property
    def metadata_columns(self) -> tuple[str, str]:
        """The names of the columns of stream and ID when reading."""
        return self.stream_column or "stream", self.id_column

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs of ``streamPattern``, which are separated by commas."""
        return tuple(part.strip() for part in self.pattern.split(",") if part.strip())

    def require_streams(self) -> None:
        """Raise RedisStreamError if there is nothing to read from."""
        if not self.streams and not self.pattern:
            raise RedisStreamError("set option stream (names, separated by commas) or streamPattern.")


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _OPTIONS}
    for name in given:
        if name.lower() not in known and name.lower() not in _SPARKS_OWN:
            close = difflib.get_close_matches(name.lower(), known, 1)
            hint = f" Did you mean {known[close[0]]}?" if close else " Streams are named by the option stream."
            raise RedisStreamError(f"{NAME} has no option {name}.{hint}")


def _find_url(url: str, variable: str, file: str) -> str:
    """Return the URL. Passwords come from the driver's environment or files: Spark shows options in plans and logs."""
    if len([given for given in (url, variable, file) if given]) != 1:
        raise RedisStreamError(
            "set one of the options url, urlEnv (the environment variable that holds the URL) and urlFile (the file)."
        )
    if variable:
        return _found(
            os.environ.get(variable), f"urlEnv names {variable}, which is not set in the driver's environment"
        )
    if file:
        return _found(_first_line(file), f"urlFile names {file}, which the driver cannot read, or which is empty")
    if _holds_password(url):
        raise RedisStreamError(
            "option url holds a password, and Spark may show options. Put the URL into an environment variable or a "
            "file of the driver, and name that by option urlEnv or urlFile."
        )
    return url


def _found(url: str | None, otherwise: str) -> str:
    if not url:
        raise RedisStreamError(f"option {otherwise}.")
    return url


def _first_line(file: str) -> str | None:
    try:
        return Path(file).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return None


def _holds_password(url: str) -> bool:
    """Tell whether there is one, also in a URL that is written wrongly (``/`` or ``@`` in a password as it is)."""
    user, at, _ = url.partition("://")[2].rpartition("@")
    options = parse_qs(urlsplit(url).query)
    return bool(at and ":" in user) or any(name.endswith("password") for name in options)


def shown(url: str) -> str:
    """Return where a URL leads, without user and password."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _number(name: str, text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[1-9]\d*", text):
        raise RedisStreamError(f"option {name} is {text!r}: it must be a whole number above 0.")
    return int(text)


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise RedisStreamError(f"option {name} is {text!r}: it must be a number of seconds.")
    return float(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RedisStreamError(f"option {name} is {text!r}: it must be true or false.")
    return text.lower() == "true"


def _starting(entry_id: str, timestamp: str) -> str:
    """Return where to begin: IDs begin with their time in ms."""
    if not timestamp:
        return _bound("startingId", entry_id or "earliest")
    if entry_id:
        raise RedisStreamError("set startingId or startingTimestamp, not both.")
    if re.fullmatch(r"\d{1,15}", timestamp):
        return timestamp
    try:
        instant = datetime.fromisoformat(timestamp)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None or instant < _EPOCH:
        raise RedisStreamError(
            f"option startingTimestamp is {timestamp!r}: it must be in ms since 1970, or written with its time zone as "
            "2026-11-20T15:04:00Z or 2026-11-20T16:04:00+01:00."
        )
    return str((instant - _EPOCH) // timedelta(milliseconds=1))


def _bound(name: str, text: str) -> str:
    if text not in ("earliest", "latest") and not re.fullmatch(r"\(?\d+(-\d+)?", text):
        raise RedisStreamError(f"option {name} is {text!r}: it must be earliest, latest or an entry ID.")
    return text
