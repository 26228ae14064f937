"""The server's work, from its own counters."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

SLOW_CALL_US = 1_000
"""Calls from here on are noted one by one (``SLOWLOG``)."""
SLOW_CALLS_KEPT = 10_000

# The calls inside of this project's scripts. ``INFO commandstats`` counts these beside what clients send.
_INSIDE_SCRIPTS = frozenset(
    {
        "del", "exists", "get", "hdel", "hget", "hgetall", "hincrby", "hlen", "hmget", "hset", "incr", "pexpire",
        "pttl", "publish", "set", "time", "xack", "xadd", "xautoclaim", "xclaim", "xdel", "xinfo", "xlen", "xpending",
        "xrange", "zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zscore",
    }
)  # fmt: skip

# The calls of the benchmarks themselves, direct and in their own scripts.
_BY_BENCHMARKS = frozenset({"config", "eval", "exec", "info", "multi", "slowlog", "xadd", "xinfo"})


@dataclass(frozen=True, slots=True)
class Calls:
    """One command's counters since `reset`."""

    calls: int
    us: float

    @property
    def mean_us(self) -> float:
        """Server time of a call."""
        return self.us / self.calls if self.calls else 0.0


async def reset(client: Redis) -> None:
    """Set the counters to zero, and have slow calls noted."""
    await client.config_set("slowlog-log-slower-than", SLOW_CALL_US)
    await client.config_set("slowlog-max-len", SLOW_CALLS_KEPT)
    with suppress(ResponseError):  # Redis 6.2 has no latency tracking
        await client.config_set("latency-tracking-info-percentiles", "50 99 100")
    await client.config_resetstat()
    await client.slowlog_reset()


async def commands(client: Redis) -> dict[str, Calls]:
    """Return the counters by command (subcommands added up), script-internal calls included."""
    found: dict[str, Calls] = {}
    stats: Mapping[str, Any] = await client.info("commandstats")
    for name, counters in stats.items():
        command = name.removeprefix("cmdstat_").partition("|")[0]
        known = found.get(command, Calls(0, 0))
        found[command] = Calls(known.calls + counters["calls"], known.us + counters["usec"])
    return found


def requests(calls: Mapping[str, Calls], *, scripts: bool) -> int:
    """Return how many commands the measured clients have sent.

    With ``scripts``, clients send scripts, and the commands that scripts call are not counted.
    """
    excluded = _BY_BENCHMARKS | (_INSIDE_SCRIPTS if scripts else frozenset())
    return sum(counters.calls for name, counters in calls.items() if name not in excluded)


async def script_call_ms(client: Redis) -> dict[str, float]:
    """Return the server time of script calls in ms, as ``mean``, ``max`` and, since Redis 7.0, ``p99``."""
    found = {"mean": (await commands(client)).get("evalsha", Calls(0, 0)).mean_us / 1000}
    slow = [entry["duration"] for entry in await client.slowlog_get(SLOW_CALLS_KEPT) if _is_script(entry["command"])]
    found["max"] = max(slow, default=SLOW_CALL_US) / 1000
    with suppress(ResponseError):
        latency: Mapping[str, Any] = await client.info("latencystats")
        percentiles = latency.get("latency_percentiles_usec_evalsha")
        if percentiles:
            found["p99"] = float(percentiles["p99"]) / 1000
            found["max"] = float(percentiles["p100"]) / 1000
    return found


def _is_script(command: bytes) -> bool:
    return command[:4].upper() == b"EVAL"


async def cpu_us(client: Redis) -> float:
    """Return the CPU time that the server has used since it started, in µs."""
    used: Mapping[str, Any] = await client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1_000_000
