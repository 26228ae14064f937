"""The server's work, from its own counters."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

SLOW_CALL_US = 1_000
"""Longer calls are listed one by one (``SLOWLOG``)."""
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


async def reset(client: Redis) -> None:
    """Set the counters to zero, and have slow calls listed."""
    await client.config_set("slowlog-log-slower-than", SLOW_CALL_US)
    await client.config_set("slowlog-max-len", SLOW_CALLS_KEPT)
    await client.config_resetstat()
    await client.slowlog_reset()


async def commands(client: Redis) -> "Counter[str]":
    """Return the calls by command (subcommands added up), script-internal calls included."""
    found: Counter[str] = Counter()
    stats: Mapping[str, Any] = await client.info("commandstats")
    for name, counters in stats.items():
        found[name.removeprefix("cmdstat_").partition("|")[0]] += counters["calls"]
    return found


def requests(calls: Mapping[str, int], *, scripts: bool) -> int:
    """Return how many commands the measured clients have sent.

    With ``scripts``, clients send scripts, and the commands that scripts call are not counted.
    """
    excluded = _BY_BENCHMARKS | (_INSIDE_SCRIPTS if scripts else frozenset())
    return sum(number for name, number in calls.items() if name not in excluded)


async def script_call_ms(client: Redis) -> dict[str, float]:
    """Return the server time of script calls in ms, as ``mean``, ``max`` and, since Redis 7.0, ``p99``."""
    of_scripts: Mapping[str, Any] = (await client.info("commandstats")).get("cmdstat_evalsha", {"usec_per_call": 0.0})
    slow = [entry["duration"] for entry in await client.slowlog_get(SLOW_CALLS_KEPT) if _is_script(entry["command"])]
    found = {"mean": of_scripts["usec_per_call"] / 1000, "max": max(slow, default=SLOW_CALL_US) / 1000}
    with suppress(ResponseError):
        latency: Mapping[str, Any] = await client.info("latencystats")
        if percentiles := latency.get("latency_percentiles_usec_evalsha"):
            found["p99"] = float(percentiles["p99"]) / 1000
    return found


def _is_script(command: bytes) -> bool:
    return command[:4].upper() == b"EVAL"


async def cpu_us(client: Redis) -> float:
    """Return the CPU time that the server has used since it started, in µs."""
    used: Mapping[str, Any] = await client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1_000_000
