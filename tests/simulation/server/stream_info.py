"""XINFO: the replies about a stream, its groups and their consumers."""

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.replies import Reply, ReplyError, syntax_error
from tests.simulation.server.streams import Group, Stream
from tests.simulation.server.words import id_text, integer


def _stream_for(core: Core, key: bytes) -> Stream:
    stream = core.keys.typed(key, Stream)
    if stream is None:
        raise ReplyError("ERR no such key")
    return stream


def _head(core: Core, stream: Stream) -> list[Reply]:
    head: list[Reply] = [
        b"length", stream.length, b"radix-tree-keys", len(stream.nodes), b"radix-tree-nodes", len(stream.nodes) + 1,
        b"last-generated-id", id_text(stream.last_id),
    ]  # fmt: skip
    if core.is_7:
        head += [
            b"max-deleted-entry-id", id_text(stream.max_deleted_id), b"entries-added", stream.entries_added,
            b"recorded-first-entry-id", id_text(stream.first_id),
        ]  # fmt: skip
    return head


@command("XINFO STREAM", -3, "read")
def xinfo_stream(core: Core, words: list[bytes]) -> Reply:
    """XINFO STREAM key [FULL [COUNT n]]"""
    stream = _stream_for(core, words[2])
    if len(words) > 3:
        return _full(core, stream, words)
    ids, values = stream.entries.ids, stream.entries.values
    return [
        *_head(core, stream), b"groups", len(stream.groups),
        b"first-entry", values[ids[0]] if ids else None, b"last-entry", values[ids[-1]] if ids else None,
    ]  # fmt: skip


def _full(core: Core, stream: Stream, words: list[bytes]) -> Reply:
    if words[3].upper() != b"FULL" or len(words) not in (4, 6):
        raise syntax_error()
    count = 10
    if len(words) == 6:
        if words[4].upper() != b"COUNT":
            raise syntax_error()
        count = max(integer(words[5]), 0)
    most = count or -1
    groups: list[Reply] = [_full_group(core, stream, name, most) for name in sorted(stream.groups)]
    entries = stream.rows(stream.entries.between(0, count=most))
    return [*_head(core, stream), b"entries", entries, b"groups", groups]


def _full_group(core: Core, stream: Stream, name: bytes, most: int) -> Reply:
    group = stream.groups[name]
    rows: list[Reply] = []
    for number in group.pending.between(0, count=most):
        row = group.pending.values[number]
        rows.append([id_text(number), row.consumer.name if row.consumer else b"", row.delivered_ms, row.times])
    told: list[Reply] = [b"name", name, b"last-delivered-id", id_text(group.last_id)]
    if core.is_7:
        told += [b"entries-read", group.entries_read, b"lag", stream.lag(group)]
    told += [b"pel-count", len(group.pending)]
    if core.capabilities.has_nack:
        told += [b"nacked-count", sum(row.consumer is None for row in group.pending.values.values())]
    return [*told, b"pending", rows, b"consumers", _full_consumers(core, group, most)]


def _full_consumers(core: Core, group: Group, most: int) -> Reply:
    told: list[Reply] = []
    for consumer in group.sorted_consumers():
        rows: list[Reply] = []
        for number in consumer.pending.between(0, count=most):
            row = consumer.pending.values[number]
            rows.append([id_text(number), row.delivered_ms, row.times])
        active: list[Reply] = [b"active-time", consumer.active_ms] if core.capabilities.is_7_2 else []
        told.append(
            [
                b"name",
                consumer.name,
                b"seen-time",
                consumer.seen_ms,
                *active,
                b"pel-count",
                len(consumer.pending),
                b"pending",
                rows,
            ]
        )
    return told


@command("XINFO GROUPS", 3, "read")
def xinfo_groups(core: Core, words: list[bytes]) -> Reply:
    """XINFO GROUPS key"""
    stream = _stream_for(core, words[2])
    told: list[Reply] = []
    for name in sorted(stream.groups):
        group = stream.groups[name]
        row: list[Reply] = [
            b"name", name, b"consumers", len(group.consumers), b"pending", len(group.pending),
            b"last-delivered-id", id_text(group.last_id),
        ]  # fmt: skip
        if core.is_7:
            row += [b"entries-read", group.entries_read, b"lag", stream.lag(group)]
        told.append(row)
    return told


@command("XINFO CONSUMERS", 4, "read")
def xinfo_consumers(core: Core, words: list[bytes]) -> Reply:
    """XINFO CONSUMERS key group"""
    stream = _stream_for(core, words[2])
    group = stream.groups.get(words[3])
    if group is None:
        raise ReplyError(b"NOGROUP No such consumer group '%b' for key name '%b'" % (words[3], words[2]))
    told: list[Reply] = []
    for consumer in group.sorted_consumers():
        row: list[Reply] = [
            b"name", consumer.name, b"pending", len(consumer.pending),
            b"idle", max(core.now_ms - consumer.seen_ms, 0),
        ]  # fmt: skip
        if core.capabilities.is_7_2:
            row += [b"inactive", core.now_ms - consumer.active_ms if consumer.active_ms >= 0 else -1]
        told.append(row)
    return told
