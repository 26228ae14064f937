"""Which server answers, as its ``INFO`` says: needs only the standard library."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.protocol.errors import UnsupportedServerError

REDIS, VALKEY = "Redis", "Valkey"
OLDEST = {REDIS: (6, 2), VALKEY: (7, 2)}
"""The first versions with what recovery needs. Valkey began with 7.2."""
CRASHING = ((7, 0, 0), (7, 0, 3))
"""First and last Redis that crashes where XAUTOCLAIM, which embedded workers run, meets deleted entries."""


@dataclass(frozen=True, slots=True)
class Release:
    """A product and its version; ``str`` is what people are shown, such as ``Valkey 9.1.2``."""

    product: str
    version: str

    def __str__(self) -> str:
        return f"{self.product} {self.version}"

    @property
    def objection(self) -> str:
        """Why it cannot be used; '' = it can."""
        numbers = tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])
        oldest = OLDEST[self.product]
        if numbers < oldest:
            return f"is older than {'.'.join(map(str, oldest))}, the first version with what recovery needs"
        if self.product == REDIS and CRASHING[0] <= numbers <= CRASHING[1]:
            return "crashes when entries of a stream are claimed that were deleted (CVE-2022-31144)"
        return ""


def release_of(info: Mapping[str, Any]) -> Release:
    """Read ``INFO server``. Valkey calls itself Redis 7.2.4 there for the sake of old clients, and then says who it is.

    Raises UnsupportedServerError where it is neither.
    """
    for product, name in ((VALKEY, "valkey_version"), (REDIS, "redis_version")):
        if info.get(name):
            return Release(product, str(info[name]))
    raise UnsupportedServerError("the server's INFO contains no version of Redis or Valkey.")
