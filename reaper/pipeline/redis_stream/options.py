"""Options of ``redis-stream``: read and checked. No message quotes a password."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from reaper.pipeline.redis_stream.errors import NAME, RedisStreamError
from workers.protocol.address import AddressError, holds_login, parse_address

_DEFAULTS: Mapping[str, str] = {
    "url": "",
    "urlEnv": "",
    "streamPattern": "",
    "maxEntriesPerTrigger": "",
    "partitions": "1",
    "failOnDataLoss": "true",
    "discoverSeconds": "10",
    "retrySeconds": "300",
}
_OF_SPARK = {"checkpointlocation", "queryname", "outputmode"}


@dataclass(frozen=True)
class Options:
    """The options of one query."""

    url: str = field(repr=False)
    patterns: tuple[str, ...]
    """Globs of the streams' keys."""
    max_entries: int | None
    partitions: int
    fail_on_data_loss: bool
    discover_s: float
    retry_s: float
    logged: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """Losses that this process has logged for this query: each is logged once."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Read options. Spark hands their names over in lower case. Raises RedisStreamError."""
        _reject_unknown(given)
        values = {name: str(given.get(name.lower(), default)).strip() for name, default in _DEFAULTS.items()}
        patterns = tuple(part.strip() for part in values["streamPattern"].split(",") if part.strip())
        if not patterns:
            raise RedisStreamError("option streamPattern is missing: set it to globs of keys, such as *:journal.")
        return cls(
            url=_find_url(values["url"], values["urlEnv"]),
            patterns=patterns,
            max_entries=_number("maxEntriesPerTrigger", values["maxEntriesPerTrigger"]),
            partitions=_number("partitions", values["partitions"]) or 1,
            fail_on_data_loss=_flag("failOnDataLoss", values["failOnDataLoss"]),
            discover_s=_seconds("discoverSeconds", values["discoverSeconds"]),
            retry_s=_seconds("retrySeconds", values["retrySeconds"]),
        )


def _reject_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _DEFAULTS}
    for name in given:
        if name.lower() not in known and name.lower() not in _OF_SPARK:
            close = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"Did you mean {known[close[0]]}?" if close else f"Its options are {', '.join(_DEFAULTS)}."
            raise RedisStreamError(f"{NAME} has no option {name}. {hint}")


def _find_url(url: str, variable: str) -> str:
    """Return the address. Spark shows options in plans and logs, so one with a password comes from the environment."""
    if bool(url) == bool(variable):
        raise RedisStreamError(
            "the address of Redis is not clear: set either option url, or option urlEnv to the name of an environment "
            "variable that holds the address."
        )
    found = os.environ.get(variable) if variable else url
    if not found:
        raise RedisStreamError(f"option urlEnv names {variable}, which is not set in the driver's environment.")
    try:
        parse_address(found)
    except AddressError as error:
        raise RedisStreamError(f"the address of Redis cannot be used: {error}") from None
    if url and holds_login(url):
        raise RedisStreamError(
            "option url holds a password, and Spark shows options: put the address into an environment variable of the "
            "driver, and set option urlEnv to its name."
        )
    return found


def _number(name: str, text: str) -> int | None:
    if text and not re.fullmatch(r"[1-9]\d*", text):
        raise RedisStreamError(f"option {name} is {text!r}: set it to a whole number above 0.")
    return int(text) if text else None


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise RedisStreamError(f"option {name} is {text!r}: set it to a number of seconds.")
    return float(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RedisStreamError(f"option {name} is {text!r}: set it to true or false.")
    return text.lower() == "true"
