"""Reads and checks the options of ``redis-stream``. No message quotes a password."""

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
_NUMBER, _SECONDS, _FLAG = (
    (r"[1-9]\d*", "a whole number above 0"),
    (r"\d+(\.\d+)?", "a number of seconds"),
    (r"(?i:true|false)", "true or false"),
)


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
    """Losses that this process has logged for this query, because each is logged once."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Read options. Spark hands their names over in lower case. Raises RedisStreamError."""
        known = {name.lower(): name for name in _DEFAULTS}
        for name in (name for name in map(str.lower, given) if name not in known and name not in _OF_SPARK):
            close = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {known[close[0]]}?" if close else f"Its options are {', '.join(_DEFAULTS)}."
            raise RedisStreamError(f"{NAME} has no option {name}. {hint}")
        values = {name: str(given.get(name.lower(), default)).strip() for name, default in _DEFAULTS.items()}

        def checked(name: str, rule: tuple[str, str]) -> str:
            if not re.fullmatch(rule[0], values[name]):
                raise RedisStreamError(f"option {name} is {values[name]!r}. Set it to {rule[1]}.")
            return values[name].lower()

        patterns = tuple(part.strip() for part in values["streamPattern"].split(",") if part.strip())
        if not patterns:
            raise RedisStreamError("option streamPattern is missing. Set it to globs of keys, such as *:journal.")
        limited = values["maxEntriesPerTrigger"] != ""
        return cls(
            url=_find_url(values["url"], values["urlEnv"]),
            patterns=patterns,
            max_entries=int(checked("maxEntriesPerTrigger", _NUMBER)) if limited else None,
            partitions=int(checked("partitions", _NUMBER)),
            fail_on_data_loss=checked("failOnDataLoss", _FLAG) == "true",
            discover_s=float(checked("discoverSeconds", _SECONDS)),
            retry_s=float(checked("retrySeconds", _SECONDS)),
        )


def _find_url(url: str, variable: str) -> str:
    """Return the address. Spark shows options in plans and logs, so one with a password comes from the environment."""
    if bool(url) == bool(variable):
        raise RedisStreamError(
            "the address of Redis is missing. Set either option url, or option urlEnv to the name of an "
            "environment variable with the address."
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
            "option url contains a password, and Spark shows options. Put the address into an environment "
            "variable of the driver, and set option urlEnv to its name."
        )
    return found
