"""The options of ``redis-stream``: read, checked, and never quoted where one may hold a password."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reaper.pipeline.redis_stream.bounds import Bounds, ending_bounds, starting_bounds
from reaper.pipeline.redis_stream.errors import NAME, RedisStreamError
from workers.protocol.address import AddressError, holds_login, parse_address

_OPTIONS: Mapping[str, str] = {
    "url": "",
    "urlEnv": "",
    "urlFile": "",
    "stream": "",
    "streamPattern": "",
    "startingId": "",
    "startingTimestamp": "",
    "endingId": "",
    "endingTimestamp": "",
    "maxEntriesPerTrigger": "",
    "minEntriesPerTrigger": "",
    "maxTriggerDelay": "15m",
    "partitions": "1",
    "pageSize": "1000",
    "batchSize": "10000",
    "failOnDataLoss": "true",
    "failOnMissing": "true",
    "ignoreDeletes": "false",
    "fieldsAs": "",
    "mode": "PERMISSIVE",
    "caseSensitive": "false",
    "pushFilters": "false",
    "idColumn": "id",
    "streamColumn": "",
    "retrySeconds": "300",
    "discoverSeconds": "10",
    "maxlen": "",
    "approximate": "true",
    "dedupeColumn": "",
    "dedupeFor": "1d",
}
_SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode", "numrows", "truncate"}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_FIELDS_AS = ("columns", "map", "json")
_MODES = ("PERMISSIVE", "FAILFAST")


@dataclass(frozen=True)
class Options:
    """What the user has set, read and checked."""

    url: str = field(repr=False)
    streams: tuple[str, ...]
    pattern: str
    starting: Bounds
    ending: Bounds
    max_entries: int | None
    min_entries: int | None
    max_delay_s: float
    partitions: int
    page_size: int
    batch_size: int
    fail_on_data_loss: bool
    fail_on_missing: bool
    ignore_deletes: bool
    fields_as: str
    fail_fast: bool
    case_sensitive: bool
    push_filters: bool
    id_column: str
    stream_column: str
    retry_s: float
    discover_s: float
    maxlen: int | None
    approximate: bool
    dedupe_column: str
    dedupe_s: float
    told: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """What was logged of this query in this process, which is said once. (A module's own memory outlives queries where
    Spark uses a process again.)"""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Read options, whose names are in lower case. Raises RedisStreamError, which never quotes ``url``."""
        _refuse_unknown(given)
        values = {name: str(given.get(name.lower(), default)).strip() for name, default in _OPTIONS.items()}
        options = cls(
            url=_find_url(values["url"], values["urlEnv"], values["urlFile"]),
            streams=tuple(name.strip() for name in values["stream"].split(",") if name.strip()),
            pattern=values["streamPattern"],
            starting=starting_bounds(values["startingId"], values["startingTimestamp"]),
            ending=ending_bounds(values["endingId"], values["endingTimestamp"]),
            max_entries=_number("maxEntriesPerTrigger", values["maxEntriesPerTrigger"]),
            min_entries=_number("minEntriesPerTrigger", values["minEntriesPerTrigger"]),
            max_delay_s=_duration("maxTriggerDelay", values["maxTriggerDelay"]),
            partitions=_number("partitions", values["partitions"]) or 1,
            page_size=_number("pageSize", values["pageSize"]) or 1,
            batch_size=_number("batchSize", values["batchSize"]) or 1,
            fail_on_data_loss=_flag("failOnDataLoss", values["failOnDataLoss"]),
            fail_on_missing=_flag("failOnMissing", values["failOnMissing"]),
            ignore_deletes=_flag("ignoreDeletes", values["ignoreDeletes"]),
            fields_as=_one_of("fieldsAs", values["fieldsAs"], ("", *_FIELDS_AS)),
            fail_fast=_one_of("mode", values["mode"].upper(), _MODES) == "FAILFAST",
            case_sensitive=_flag("caseSensitive", values["caseSensitive"]),
            push_filters=_flag("pushFilters", values["pushFilters"]),
            id_column=values["idColumn"],
            stream_column=values["streamColumn"],
            retry_s=_seconds("retrySeconds", values["retrySeconds"]),
            discover_s=_seconds("discoverSeconds", values["discoverSeconds"]),
            maxlen=_number("maxlen", values["maxlen"]),
            approximate=_flag("approximate", values["approximate"]),
            dedupe_column=values["dedupeColumn"],
            dedupe_s=_duration("dedupeFor", values["dedupeFor"]),
        )
        options._check()
        return options

    def _check(self) -> None:
        """Raise RedisStreamError where options contradict each other."""
        if self.min_entries and self.max_entries and self.min_entries > self.max_entries:
            raise RedisStreamError("minEntriesPerTrigger is above maxEntriesPerTrigger: no batch could be so large.")
        if not self.pattern:
            self.starting.require_known("startingId or startingTimestamp", self.streams)
            self.ending.require_known("endingId or endingTimestamp", self.streams)

    @property
    def metadata_columns(self) -> tuple[str, str]:
        """The names of the columns of stream and ID when reading."""
        return self.stream_column or "stream", self.id_column

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs of ``streamPattern``, which are separated by commas."""
        return tuple(part.strip() for part in self.pattern.split(",") if part.strip())

    def fold(self, name: str) -> str:
        """Return what the names of columns have in common that are one column to Spark."""
        return name if self.case_sensitive else name.lower()

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
    try:
        parse_address(url)
    except AddressError as error:
        raise RedisStreamError(f"the URL of Redis cannot be used: {error}") from None
    if holds_login(url):
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
        return Path(file).read_text(encoding="utf-8-sig").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return None


def _one_of(name: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise RedisStreamError(f"option {name} is {text!r}: it must be one of {', '.join(filter(None, allowed))}.")
    return text


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


def _duration(name: str, text: str) -> float:
    """Read a time as Spark's own options have it: ``90s``, ``15m``; a number alone is in ms."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)?", text.lower())
    if not found:
        raise RedisStreamError(f"option {name} is {text!r}: it must be a time such as 500ms, 90s, 15m or 2h.")
    return int(found[1]) * _UNITS[(found[2] or "ms").replace("min", "m")]


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RedisStreamError(f"option {name} is {text!r}: it must be true or false.")
    return text.lower() == "true"
