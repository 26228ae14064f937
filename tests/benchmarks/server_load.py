"""The server's work, from its own counters."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

# The calls inside of this project's scripts. ``INFO commandstats`` counts these beside what clients send.
_INSIDE_SCRIPTS = frozenset(
    {
        "del", "exists", "get", "hdel", "hget", "hgetall", "hincrby", "hlen", "hmget", "hset", "incr", "pexpire",
        "pttl", "publish", "set", "time", "xack", "xadd", "xautoclaim", "xclaim", "xdel", "xinfo", "xlen", "xpending",
        "xrange", "zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zscore",
    }
)  # fmt: skip

# The calls of the benchmarks themselves, direct and in their own scripts.
_BY_BENCHMARKS = frozenset({"config", "eval", "exec", "info", "multi", "xadd", "xinfo"})


async def reset(client: Redis) -> None:
    """Set the counters to zero."""
    await client.config_resetstat()


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


async def cpu_us(client: Redis) -> float:
    """Return the CPU time that the server has used since it started, in µs."""
    used: Mapping[str, Any] = await client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1_000_000
