"""XREAD and XREADGROUP answer with existing entries at once, or else let the client wait."""

from dataclasses import dataclass, field, replace

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.replies import NO_REPLY, NULL_ARRAY, Reply, ReplyError, syntax_error
from tests.simulation.server.streams import Group, Stream
from tests.simulation.server.words import LAST_ID, entry_id, id_text, integer

NEW = LAST_ID
"""In place of an ID: what no consumer of the group was given yet."""
GROUP_GONE = "NOGROUP the consumer group this client was blocked on no longer exists"
KEY_GONE = "UNBLOCKED the stream key no longer exists"


@dataclass(slots=True)
class Read:
    """The read of a client."""

    verb: str
    group: bytes | None = None
    consumer: bytes = b""
    count: int = -1
    max_count: int = LAST_ID
    """Of the whole reply (8.10)."""
    block_ms: int = -1
    no_ack: bool = False
    min_idle: int | None = None
    keys: list[bytes] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    """By key: the ID behind which to read; `NEW`."""

    def words_for(self, key: bytes) -> list[bytes]:
        """Return a command that reads what is new in one of the keys, and does not wait."""
        options: list[bytes] = []
        if self.count > 0:
            options += [b"COUNT", b"%d" % self.count]
        if self.max_count != LAST_ID:
            options += [b"MAXCOUNT", b"%d" % self.max_count]
        if self.no_ack:
            options.append(b"NOACK")
        if self.min_idle is not None:
            options += [b"CLAIM", b"%d" % self.min_idle]
        return [b"XREADGROUP", b"GROUP", self.group or b"", self.consumer, *options, b"STREAMS", key, b">"]

    def serve(self, core: Core, key: bytes, stream: Stream, after: int) -> list[Reply] | None:
        """Return the entries of ``key`` for the client, or None if there are none."""
        if self.group is None:
            if stream.last_valid_id() <= after:
                return None
            return [key, stream.rows(stream.entries.between(after + 1, LAST_ID, self.count))]
        group = stream.groups[self.group]
        if after != NEW:
            return [key, self._history(core, stream, group, after)]
        claimed = self._claim(core, stream, group)
        left = self.count - len(claimed) if self.count > 0 else -1
        new: list[Reply] = []
        if stream.last_valid_id() > group.last_id and left != 0:
            new = self._new(core, stream, group, left)
        return [key, [*claimed, *new]] if claimed or new else None

    def _new(self, core: Core, stream: Stream, group: Group, count: int) -> list[Reply]:
        consumer = group.consumer(self.consumer, core.now_ms)
        consumer.active_ms = core.now_ms
        ids = stream.entries.between(group.last_id + 1, LAST_ID, count)
        for number in ids:
            stream.has_read(group, number)
            if not self.no_ack:
                group.hand_out(number, consumer, core.now_ms)
        rows = stream.rows(ids)
        if self.min_idle is not None:
            return [[*row, 0, 0] for row in rows if isinstance(row, list)]
        return rows

    def _claim(self, core: Core, stream: Stream, group: Group) -> list[Reply]:
        """Claim overdue entries, the longest idle first, and those that were delivered in the future (8.4)."""
        if self.min_idle is None:
            return []
        due = sorted(
            (row.delivered_ms, row.touched, number)
            for number, row in group.pending.values.items()
            if not 0 <= core.now_ms - row.delivered_ms < self.min_idle and number in stream.entries
        )
        claimed: list[Reply] = []
        for delivered_ms, _, number in due[: self.count if self.count > 0 else None]:
            consumer, row = group.consumer(self.consumer, core.now_ms), group.pending.values[number]
            entry_text, fields = stream.entries.values[number]
            claimed.append([entry_text, fields, core.now_ms - delivered_ms, row.times])
            row.times, row.delivered_ms = row.times + 1, core.now_ms
            group.give(number, row, consumer)
        return claimed

    def _history(self, core: Core, stream: Stream, group: Group, after: int) -> Reply:
        consumer = group.consumer(self.consumer, core.now_ms)
        rows: list[Reply] = []
        for number in consumer.pending.between(after + 1, LAST_ID, self.count):
            entry = stream.entries.get(number)
            if entry is None:
                rows.append([id_text(number), NULL_ARRAY])
                continue
            row = consumer.pending.values[number]
            row.delivered_ms, row.times = core.now_ms, row.times + 1
            rows.append(entry)
        return rows


def _read_options(core: Core, words: list[bytes], read: Read) -> int:
    """Read all up to STREAMS; return where the keys begin."""
    at = 1
    while at < len(words):
        option, more = words[at].upper(), len(words) - at - 1
        if option == b"STREAMS" and more:
            return at + 1
        if option == b"BLOCK" and more:
            read.block_ms = integer(words[at + 1], "ERR timeout is not an integer or out of range")
            if read.block_ms < 0:
                raise ReplyError("ERR timeout is negative")
            at += 2
        elif option == b"COUNT" and more:
            read.count = integer(words[at + 1])
            read.count = read.count if read.count > 0 else -1
            at += 2
        elif option in (b"MAXCOUNT", b"MAXSIZE") and more and core.capabilities.has_maxcount:
            _limit_reply(read, option, integer(words[at + 1]))
            at += 2
        elif option == b"GROUP" and more >= 2:
            _demand_group(read, option)
            read.group, read.consumer = words[at + 1], words[at + 2]
            at += 3
        elif option == b"NOACK":
            _demand_group(read, option)
            read.no_ack, at = True, at + 1
        elif option == b"CLAIM" and more and read.verb == "XREADGROUP" and core.capabilities.has_claim:
            read.min_idle = integer(words[at + 1], "ERR min-idle-time is not an integer or out of range")
            if read.min_idle < 0:
                raise ReplyError("ERR min-idle-time must be a positive integer")
            at += 2
        else:
            raise syntax_error()
    raise syntax_error()


def _demand_group(read: Read, option: bytes) -> None:
    if read.verb != "XREADGROUP":
        raise ReplyError(b"ERR The %b option is only supported by XREADGROUP. You called XREAD instead." % option)


def _limit_reply(read: Read, option: bytes, limit: int) -> None:
    """Note a limit on the whole reply. No reply of a story is as large as the MAXSIZE of the product."""
    if limit <= 0:
        raise ReplyError(b"ERR %b must be a positive integer" % option)
    if option == b"MAXCOUNT":
        read.max_count = limit


def _parse(core: Core, words: list[bytes]) -> Read:
    read = Read(words[0].upper().decode())
    at = _read_options(core, words, read)
    if read.max_count < read.count:
        raise ReplyError("ERR MAXCOUNT must be greater than or equal to COUNT")
    count = len(words) - at
    if count % 2:
        symbols = "ID or '$'" if read.verb == "XREAD" else "ID or '>'" if core.capabilities.is_7_2 else "ID or '$'"
        verb = f"'{read.verb.lower()}'" if core.is_7 else "XREAD"
        raise ReplyError(f"ERR Unbalanced {verb} list of streams: for each stream key an {symbols} must be specified.")
    if read.verb == "XREADGROUP" and read.group is None:
        raise ReplyError("ERR Missing GROUP option for XREADGROUP")
    half = count // 2
    for key, word in zip(words[at : at + half], words[at + half :], strict=True):
        read.keys.append(key)
        read.after.append(_after(core, read, key, word))
    return read


def _after(core: Core, read: Read, key: bytes, word: bytes) -> int:
    stream = core.keys.typed(key, Stream)
    if read.group is not None and (stream is None or read.group not in stream.groups):
        raise ReplyError(
            b"NOGROUP No such key '%b' or consumer group '%b' in XREADGROUP with GROUP option" % (key, read.group)
        )
    if word == b"$":
        if read.group is not None:
            raise ReplyError(
                "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this"
                " consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just"
                " return an empty result set."
            )
        return stream.last_id if stream is not None else 0
    if word == b">":
        if read.group is None:
            raise ReplyError(
                "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
            )
        return NEW
    return entry_id(word)


def _run(core: Core, words: list[bytes]) -> Reply:
    read = _parse(core, words)
    found: list[Reply] = []
    part, left = read, read.max_count
    for key, after in zip(read.keys, read.after, strict=True):
        stream = core.keys.typed(key, Stream)
        if stream is not None and left > 0:
            if read.max_count < LAST_ID:
                part = replace(read, count=min(left, read.count) if read.count > 0 else left)
            served = part.serve(core, key, stream, after)
            if served is not None:
                found.append(served)
                left -= len(served[1]) if isinstance(served[1], list) else 0
    if found:
        return found
    if read.block_ms < 0 or core.in_script or core.session is None or core.session.in_transaction:
        return NULL_ARRAY
    core.waiting = read
    return NO_REPLY


@command("XREAD", -4, "read")
def xread(core: Core, words: list[bytes]) -> Reply:
    """XREAD [COUNT n] [BLOCK ms] STREAMS key … id …"""
    return _run(core, words)


@command("XREADGROUP", -7, "write")
def xreadgroup(core: Core, words: list[bytes]) -> Reply:
    """XREADGROUP GROUP group consumer [COUNT n] [MAXCOUNT n] [MAXSIZE n] [BLOCK ms] [NOACK] [CLAIM ms] STREAMS …"""
    return _run(core, words)
