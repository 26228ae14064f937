"""The one place that spells Redis keys.

Every key derived from a stream shares the stream's hash slot, so that one script may touch them together in Redis
Cluster. The stream's name is wrapped as a hash tag (``{orders}:dead:billing`` lies with ``orders``). A name that
already holds a tag (``{shop}orders``) keeps it.
"""

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache

from workers.protocol.errors import ConfigurationError

MAX_NAME_LENGTH = 255
NONCE_BYTES = 6
"""A worker's consumer is ``<name>~<nonce>``, with twelve hex digits, new in each process. Other consumers can end in a
dot and the name of a Docker host, which has as many."""
MARKER_CONSUMER = "marked-by-reaper"
"""A consumer without deliveries. If it is missing, a third party has destroyed the group, or deleted its consumers."""
RETURNED_CONSUMER = "returned-by-reaper"
"""The consumer of deliveries that a read with CLAIM took by mistake, until the next heartbeat of their worker."""
OUR_CONSUMERS = frozenset({MARKER_CONSUMER, RETURNED_CONSUMER})
"""Consumers that belong to no worker."""
NOBODY = ""
"""The owner, in ``XPENDING``, of an entry that ``XNACK`` gave back (Redis 8.8). The entry is ready, and idle for -1."""
_UNUSABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # the last are bytes of a command line that are not UTF-8
_WORKER = re.compile(rb"~[0-9a-f]{%d}$" % (2 * NONCE_BYTES))


def _check_name(kind: str, name: str) -> None:
    if not name:
        raise ConfigurationError(f"{kind} is empty. Give a name, for example 'orders'.")
    if _UNUSABLE.search(name):
        raise ConfigurationError(
            f"{kind} {name!a} contains control characters, or is not UTF-8 text. Use other characters."
        )
    if len(name.encode()) > MAX_NAME_LENGTH:
        raise ConfigurationError(f"{kind} {name[:40]!r}… is longer than {MAX_NAME_LENGTH} bytes. Use a shorter name.")


def hash_tag(name: str) -> str | None:
    """Return the tag Redis Cluster would hash instead of the whole name, if the name has one."""
    start = name.find("{")
    if start < 0:
        return None
    end = name.find("}", start + 1)
    return name[start + 1 : end] if end > start + 1 else None


def _prefix(stream: str) -> str:
    """Return the beginning of all keys derived from ``stream``. Raises ConfigurationError."""
    _check_name("stream", stream)
    tag = hash_tag(stream)
    if tag is None:
        if "}" in stream:
            raise ConfigurationError(
                f"stream {stream!r} contains '}}' outside a hash tag, so no other key can be in its hash slot. "
                "Rename the stream, or give it a tag, for example '{orders}:eu'."
            )
        return "{" + stream + "}"
    if stream == "{" + tag + "}":
        raise ConfigurationError(
            f"stream {stream!r} is only a hash tag, so its keys would be those of stream {tag!r}. "
            f"Rename it, for example to '{stream}:jobs'."
        )
    return stream


def is_worker(consumer: bytes) -> bool:
    """Return whether a consumer is a stream-reaper worker, by its name."""
    return _WORKER.search(consumer) is not None


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """All keys of one group. Use `group_keys` to build it."""

    stream: str
    group: str
    retry: str
    """Stream of redelivery copies for policy ``retry-stream``."""
    stream_schedule: str
    """Sorted set of delayed enqueues, seen by every group when due."""
    schedule: str
    """Sorted set of this group's delayed retries and quarantined jobs."""
    dead: str
    """Stream of dead letters."""
    lease: str
    """String with an expiry, ``replica.nonce@TTL``. It names the replica that may write in the group."""
    settings: str
    """Hash of the group settings, and of counters."""
    quarantine: str
    """Hash of released quarantined jobs that are not settled, by entry ID."""
    journal: str
    """Capped stream of lifecycle events, shared by the groups of the stream."""

    @property
    def name(self) -> str:
        """The full name of the group, as ``orders/billing``."""
        return f"{self.stream}/{self.group}"

    @property
    def word(self) -> str:
        """The same as a word of a shell, for commands in messages."""
        return shlex.quote(self.name)


def split_group(name: str) -> tuple[str, str] | None:
    """Return stream and group of ``orders/billing``, or None for other text. The last slash separates them."""
    stream, _, group = name.rpartition("/")
    return (stream, group) if stream and group else None


@lru_cache(maxsize=32_768)
def group_keys(stream: str, group: str) -> GroupKeys:
    """Spell the keys of ``stream``/``group``. Raises ConfigurationError for names that cannot work."""
    prefix = _prefix(stream)
    _check_name("group", group)
    if "/" in group:
        raise ConfigurationError(f"group {group!r} contains '/', which separates stream and group. Use another name.")
    return GroupKeys(
        stream=stream,
        group=group,
        retry=f"{prefix}:retry:{group}",
        stream_schedule=f"{prefix}:scheduled",
        schedule=f"{prefix}:scheduled:{group}",
        dead=f"{prefix}:dead:{group}",
        lease=f"{prefix}:lease:{group}",
        settings=f"{prefix}:group:{group}",
        quarantine=f"{prefix}:quarantine:{group}",
        journal=f"{prefix}:journal",
    )


def stream_of_journal(journal: str) -> str:
    """Return the stream of a journal, for example ``orders`` for ``{orders}:journal``."""
    prefix = journal.removesuffix(":journal")
    wrapped = prefix[1:-1]
    return wrapped if prefix == "{" + wrapped + "}" and "}" not in wrapped else prefix


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys of a stream that belong to no group, which producers use. Use `stream_keys` to build it."""

    stream: str
    schedule: str
    """Sorted set of delayed enqueues, seen by every group when due."""
    enqueued: str
    """Sorted set of job IDs that producers have chosen lately, so that none is enqueued twice."""


def stream_keys(stream: str) -> StreamKeys:
    """Spell the keys of ``stream``. Raises ConfigurationError for a name that cannot work."""
    prefix = _prefix(stream)
    return StreamKeys(stream, f"{prefix}:scheduled", f"{prefix}:enqueued")


@dataclass(frozen=True, slots=True)
class NamespaceKeys:
    """The keys of one set of replicas, which share the groups."""

    namespace: str
    replicas: str
    """Hash of the reports of replicas, by their IDs."""
    groups: str
    """Hash of the groups that each replica watches, by its ID."""
    live: str
    """Sorted set of live replicas, by the time of their last registration."""
    drained: str
    """Sorted set of drained replicas, by the end of their drain."""
    watched: str
    """Hash of watched groups that settings do not name. The value is the pattern that found the group, or ''."""
    scanned: str
    """Sorted set of digests of settings, by the time of the next scan for their patterns."""
    journal: str
    """Capped stream of the faults that drills injected."""


def namespace_keys(namespace: str) -> NamespaceKeys:
    """Spell the keys of ``namespace``. Raises ConfigurationError for names that cannot work."""
    _check_name("namespace", namespace)
    if any(character in "{}:" for character in namespace):
        raise ConfigurationError(
            f"namespace {namespace!r} contains '{{', '}}' or ':'. Use letters, digits, '-' and '_'."
        )
    tag = "{" + namespace + "}"
    names = ("replicas", "groups", "live", "drained", "watched", "scanned", "drills:journal")
    return NamespaceKeys(namespace, *(f"{tag}:{name}" for name in names))


TYPES = {
    **dict.fromkeys(("stream", "retry", "dead", "journal"), "stream"),
    **dict.fromkeys(("stream_schedule", "schedule", "enqueued", "live", "drained", "scanned"), "zset"),
    **dict.fromkeys(("settings", "quarantine", "replicas", "groups", "watched"), "hash"),
    "lease": "string",
}
"""The Redis types of the keys, by the names of the fields above."""
