"""Findings about the settings, memory, clients and clock of the server, and the rights of our user. Pure."""

from collections.abc import Iterator

from reaper.operations.examination import ServerFacts
from reaper.operations.findings import NOT_SEEN, Finding, note, ok, unknown, warning, wrong
from reaper.operations.words import duration
from workers.protocol.messages import counted
from workers.protocol.server import in_words

_FIRST_WITH_DRYRUN = 7
CLOCK_TOLERANCE_MS = 5_000
MEMORY_FULL = 0.9
CLIENTS_FULL = 0.9
JOBS_IN_A_READ, LARGEST_JOB = 64, 1_048_576
"""What a worker and a producer of ours have by default: `concurrency`, and `max_bytes`."""


def check_server_facts(server: ServerFacts) -> Iterator[Finding]:
    """Return the findings about the server itself."""
    features = in_words(server.capabilities)
    release = f"{server.release} ({features})" if features else server.release
    yield ok("server", f"{release}, answers within {server.round_trip_ms:.1f} ms")
    yield _role(server)
    yield _eviction(server)
    yield from _memory(server)
    yield from _clients(server)
    yield from _writes(server)
    yield _persistence(server)
    yield _clock(server)
    if server.config is None:
        yield unknown(
            "config",
            "the user may not run CONFIG GET, which shows min-replicas-to-write, save and appendfsync",
        )


def _role(server: ServerFacts) -> Finding:
    if server.info.get("role") == "slave":
        return wrong("replication", "redis_url names a replica, which rejects writes. Name the primary.")
    replicas = int(server.info.get("connected_slaves", 0))
    if replicas and server.configured("min-replicas-to-write", "unknown") == "0":
        return note(
            "replication",
            f"{counted(replicas, 'replica')}, min-replicas-to-write 0: a failover can lose the last writes, so "
            "jobs run again. Set min-replicas-to-write 1.",
        )
    return ok("replication", f"primary with {counted(replicas, 'replica')}")


def _eviction(server: ServerFacts) -> Finding:
    policy = server.info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ok("eviction", "maxmemory-policy noeviction")
    return wrong(
        "eviction",
        f"maxmemory-policy {policy}: when memory is full, Redis deletes keys, for example jobs or leases. "
        "Set noeviction.",
    )


def _memory(server: ServerFacts) -> Iterator[Finding]:
    limit, used = int(server.info.get("maxmemory", 0)), int(server.info.get("used_memory", 0))
    if limit and used > limit * MEMORY_FULL:
        yield wrong(
            "memory", f"{used / limit:.0%} of maxmemory is used, so Redis will soon reject producers. Raise maxmemory."
        )


def _clients(server: ServerFacts) -> Iterator[Finding]:
    """Report a limit of clients that is nearly reached, and a limit that disconnects clients with large replies."""
    connected = int(server.info.get("connected_clients", 0))
    most = int(server.info.get("maxclients", 0) or server.configured("maxclients", "0"))
    if most and connected > most * CLIENTS_FULL:
        yield wrong(
            "clients",
            f"{connected} of at most {most} clients are connected, so Redis will soon reject new ones. Raise "
            "maxclients, or close idle connections.",
        )
    limit = _reply_limit(server)
    if 0 < limit <= LARGEST_JOB:
        yield wrong(
            "clients",
            f"client-output-buffer-limit normal {limit}: Redis disconnects a client that reads more at once, and "
            f"a job can have {LARGEST_JOB} bytes (max_bytes of producers). Set it to 0 0 0 for normal clients.",
        )
    elif 0 < limit <= JOBS_IN_A_READ * LARGEST_JOB:
        yield note(
            "clients",
            f"client-output-buffer-limit normal {limit}: a read of {JOBS_IN_A_READ} jobs (the default "
            f"concurrency) can bring {JOBS_IN_A_READ * LARGEST_JOB} bytes. Workers then read fewer jobs at a "
            "time. Set 0 0 0 for no limit.",
        )
    if server.configured("maxmemory-clients", "0") not in ("0", "0%"):
        yield note(
            "clients",
            f"maxmemory-clients {server.configured('maxmemory-clients', '')}: if all clients together use more, "
            "Redis disconnects the largest ones, readers of large jobs first. Set 0 for no limit.",
        )


def _reply_limit(server: ServerFacts) -> int:
    """Return the hard limit of the replies that wait for a normal client, in bytes. 0 is none or unknown."""
    words = server.configured("client-output-buffer-limit", "").split()
    classes = {words[at]: words[at + 1 : at + 4] for at in range(0, len(words), 4)}
    hard, *_ = classes.get("normal") or ["0"]
    return int(hard) if hard.isdigit() else 0


def _writes(server: ServerFacts) -> Iterator[Finding]:
    """Report a server that rejects every write. Then no replica holds a lease, although all reads look healthy."""
    in_time = server.info.get("min_slaves_good_slaves")  # is there where min-replicas-to-write is set
    least = server.configured("min-replicas-to-write", "1")
    if in_time is not None and int(in_time) < int(least):
        yield wrong(
            "writes",
            f"Redis rejects every write: {counted(int(in_time), 'replica is', 'replicas are')} in time, and "
            f"min-replicas-to-write is {least if server.config else 'more'}. Repair the replicas, or lower it.",
        )
    failed = server.info.get("rdb_last_bgsave_status", "ok") != "ok"
    if failed and server.configured("stop-writes-on-bgsave-error", "yes") == "yes" and server.configured("save", "?"):
        yield wrong(
            "writes",
            "Redis rejects every write: the last snapshot failed (stop-writes-on-bgsave-error). Check the disk.",
        )


def _persistence(server: ServerFacts) -> Finding:
    if not server.info.get("aof_enabled"):
        snapshots = " (snapshots only)" if server.configured("save", "") else ""
        return warning(
            "persistence",
            f"no append-only file{snapshots}: a restart loses accepted jobs. Set appendonly yes.",
        )
    if server.info.get("aof_last_write_status", "ok") != "ok":
        return wrong("persistence", "the last write to the append-only file failed. Check the disk.")
    sync = server.configured("appendfsync", "")
    if sync == "no":
        return note(
            "persistence",
            "append-only file, appendfsync no: a crash of the machine can lose many seconds. Set everysec.",
        )
    return ok("persistence", f"append-only file {sync}".strip())


def _clock(server: ServerFacts) -> Finding:
    ahead = server.ahead_ms
    if abs(ahead) <= CLOCK_TOLERANCE_MS:
        return ok("clock", f"within {duration(abs(ahead))} of this machine's")
    side = "ahead of" if ahead > 0 else "behind"
    return note(
        "clock",
        f"the server's clock is {duration(abs(ahead))} {side} this machine's. Recovery uses only the "
        "server's, but entry IDs and ages will not match logs. Run NTP on both.",
    )


def check_rights(server: ServerFacts, *, any_group: bool) -> Finding:
    """Return which rights the user lacks. Without ``any_group``, rights on keys are not known."""
    if server.missing_rights is None:
        if not any_group:
            return unknown("rights", "no group is named, and permissions depend on the group")
        if int(str(server.info.get("redis_version", "0")).split(".")[0]) < _FIRST_WITH_DRYRUN:
            return unknown("rights", "ACL DRYRUN needs Redis 7")
        return unknown("rights", "the user may not run ACL WHOAMI and ACL DRYRUN")
    if server.missing_rights:
        lacks = " ".join(f"+{command}" for command in server.missing_rights)
        return wrong("rights", f"user {server.user} lacks {lacks} for the work of a reaper. See `reaper acl reaper`.")
    return ok("rights", f"user {server.user} has all permissions of a reaper")


def check_keys(foreign: str | None) -> Iterator[Finding]:
    """Return whether a key of ours holds something else. ``foreign`` names it, and is None if it was not seen."""
    if foreign is None:
        yield unknown("keys", NOT_SEEN)
    elif foreign:
        yield wrong("keys", f"{foreign}: another program uses this name. Rename one of them.")
