"""Commands on consumer groups and their pending entries, but for reads."""

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.replies import NULL_ARRAY, OK, Reply, ReplyError, syntax_error
from tests.simulation.server.streams import UNKNOWN, Consumer, Group, Pending, Stream
from tests.simulation.server.words import LAST_ID, bound_id, entry_id, id_text, integer, interval_end, interval_start

NO_KEY = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option"
    " to create an empty stream automatically."
)
NO_KEY_OR_GROUP = b"NOGROUP No such key '%b' or consumer group '%b'"
MOST_TIMES = 2**63 - 1  # the count of XNACK FATAL
AUTOCLAIM_LOOKS = 10  # entries that XAUTOCLAIM looks at, for each that it may return


def group_of(core: Core, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """Return a group, and its stream. Raises ReplyError where either is not there."""
    stream = core.keys.typed(key, Stream)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        raise ReplyError(NO_KEY_OR_GROUP % (key, name))
    return stream, group


# ---- XGROUP
def _stream_for(core: Core, key: bytes) -> Stream:
    stream = core.keys.typed(key, Stream)
    if stream is None:
        raise ReplyError(NO_KEY)
    return stream


def _group_in(core: Core, words: list[bytes]) -> tuple[Stream, Group]:
    stream = _stream_for(core, words[2])
    group = stream.groups.get(words[3])
    if group is None:
        raise ReplyError(b"NOGROUP No such consumer group '%b' for key name '%b'" % (words[3], words[2]))
    return stream, group


@command("XGROUP CREATE", -5, "grow")
def xgroup_create(core: Core, words: list[bytes]) -> Reply:
    """XGROUP CREATE key group id|$ [MKSTREAM] [ENTRIESREAD n]"""
    may_make, entries_read, at = False, UNKNOWN, 5
    while at < len(words):
        option = words[at].upper()
        if option == b"MKSTREAM":
            may_make, at = True, at + 1
        elif core.is_7 and option == b"ENTRIESREAD" and at + 1 < len(words):
            entries_read, at = _entries_read(words[at + 1]), at + 2
        else:
            if not core.is_7:  # it looks at the words last
                _stream_for(core, words[2])
            raise _bad_words(core, words)
    key = words[2]
    stream = core.keys.typed(key, Stream)
    if stream is None and not may_make:
        raise ReplyError(NO_KEY)
    last_id = (stream.last_id if stream is not None else 0) if words[4] == b"$" else entry_id(words[4])
    if stream is None:
        stream = core.keys.values[key] = Stream()
        core.signal(key)
    if words[3] in stream.groups:
        raise ReplyError("BUSYGROUP Consumer Group name already exists")
    stream.groups[words[3]] = Group(last_id, entries_read)
    return OK


def _bad_words(core: Core, words: list[bytes]) -> ReplyError:
    said = b"unknown" if core.is_7 else b"Unknown"
    return ReplyError(b"ERR %b subcommand or wrong number of arguments for '%b'. Try XGROUP HELP." % (said, words[1]))


def _entries_read(word: bytes) -> int | None:
    number = integer(word)
    if number < -1:
        raise ReplyError("ERR value for ENTRIESREAD must be positive or -1")
    return UNKNOWN if number < 0 else number


@command("XGROUP SETID", -5, "write")
def xgroup_setid(core: Core, words: list[bytes]) -> Reply:
    """XGROUP SETID key group id|$ [ENTRIESREAD n]"""
    entries_read = UNKNOWN
    if len(words) != 5:
        if not core.is_7 or len(words) != 7 or words[5].upper() != b"ENTRIESREAD":
            raise _bad_words(core, words)
        entries_read = _entries_read(words[6])
    stream, group = _group_in(core, words)
    group.last_id = stream.last_id if words[4] == b"$" else bound_id(words[4], 0)
    group.entries_read = entries_read
    return OK


@command("XGROUP DESTROY", 4, "write")
def xgroup_destroy(core: Core, words: list[bytes]) -> Reply:
    """XGROUP DESTROY key group"""
    stream = _stream_for(core, words[2])
    if stream.groups.pop(words[3], None) is None:
        return 0
    core.signal(words[2])
    return 1


@command("XGROUP CREATECONSUMER", 5, "grow")
def xgroup_createconsumer(core: Core, words: list[bytes]) -> Reply:
    """XGROUP CREATECONSUMER key group consumer"""
    _, group = _group_in(core, words)
    is_new = words[4] not in group.consumers
    if is_new:
        group.consumer(words[4], core.now_ms)
    return int(is_new)


@command("XGROUP DELCONSUMER", 5, "write")
def xgroup_delconsumer(core: Core, words: list[bytes]) -> Reply:
    """XGROUP DELCONSUMER key group consumer"""
    _, group = _group_in(core, words)
    return group.delete_consumer(words[4])


# ---- pending entries
@command("XACK", -4, "write")
def xack(core: Core, words: list[bytes]) -> Reply:
    """XACK key group id …"""
    stream = core.keys.typed(words[1], Stream)
    group = stream.groups.get(words[2]) if stream is not None else None
    if group is None:
        return 0
    numbers = [entry_id(word) for word in words[3:]]
    return sum(group.release(number) for number in numbers)


@command("XPENDING", -3, "read")
def xpending(core: Core, words: list[bytes]) -> Reply:
    """XPENDING key group [[IDLE ms] start end count [consumer]]"""
    if len(words) == 3:
        return _summary(group_of(core, words[1], words[2])[1])
    at, min_idle = 3, 0
    if words[3].upper() == b"IDLE":
        if len(words) < 8:
            raise syntax_error()
        min_idle, at = integer(words[4]), 5
    if not 3 <= len(words) - at <= 4:
        raise syntax_error()
    count = max(integer(words[at + 2]), 0)
    start, end = interval_start(words[at]), interval_end(words[at + 1])
    _, group = group_of(core, words[1], words[2])
    pending = group.pending
    if len(words) - at == 4:
        consumer = group.consumers.get(words[at + 3])
        if consumer is None:
            return []
        pending = consumer.pending
    now_ms = core.now_ms
    rows: list[Reply] = []
    for number in pending.between(start, end, -1 if min_idle else count):
        row = pending.values[number]
        idle = max(now_ms - row.delivered_ms, 0)
        if (row.consumer is None or idle >= min_idle) and len(rows) < count:
            if row.consumer is None:
                rows.append([id_text(number), b"", -1, row.times])
            else:
                rows.append([id_text(number), row.consumer.name, idle, row.times])
    return rows


def _summary(group: Group) -> Reply:
    ids = group.pending.ids
    if not ids:
        return [0, None, None, NULL_ARRAY]
    consumers: list[Reply] = [
        [consumer.name, b"%d" % len(consumer.pending)] for consumer in group.sorted_consumers() if len(consumer.pending)
    ]
    return [len(ids), id_text(ids[0]), id_text(ids[-1]), consumers]


class _Claim:
    """The options of XCLAIM."""

    def __init__(self, core: Core, words: list[bytes], at: int) -> None:
        now_ms = core.now_ms
        self.times, self.force, self.just_id, self.last_id = -1, False, False, 0
        delivered = now_ms
        while at < len(words):
            option, has_value = words[at].upper(), at + 1 < len(words)
            at += 1
            if option == b"FORCE":
                self.force = True
            elif option == b"JUSTID":
                self.just_id = True
            elif option == b"IDLE" and has_value:
                delivered = now_ms - integer(words[at], "ERR Invalid IDLE option argument for XCLAIM")
                at += 1
            elif option == b"TIME" and has_value:
                delivered = integer(words[at], "ERR Invalid TIME option argument for XCLAIM")
                at += 1
            elif option == b"RETRYCOUNT" and has_value:
                self.times = integer(words[at], "ERR Invalid RETRYCOUNT option argument for XCLAIM")
                at += 1
            elif option == b"LASTID" and has_value:
                self.last_id = entry_id(words[at])
                at += 1
            else:
                raise ReplyError(b"ERR Unrecognized XCLAIM option '%b'" % words[at - 1])
        self.delivered_ms = delivered if 0 <= delivered <= now_ms else now_ms


@command("XCLAIM", -6, "write")
def xclaim(core: Core, words: list[bytes]) -> Reply:
    """XCLAIM key group consumer min-idle id … [IDLE ms] [TIME ms] [RETRYCOUNT n] [FORCE] [JUSTID] [LASTID id]"""
    stream, group = group_of(core, words[1], words[2])
    min_idle = max(integer(words[4], "ERR Invalid min-idle-time argument for XCLAIM"), 0)
    numbers, at = [], 5
    while at < len(words):
        try:
            numbers.append(entry_id(words[at]))
        except ReplyError:
            break
        at += 1
    how = _Claim(core, words, at)
    group.last_id = max(group.last_id, how.last_id)
    consumer = group.consumer(words[3], core.now_ms) if core.capabilities.is_7_2 else None
    reply: list[Reply] = []
    for number in numbers:
        row, entry = group.pending.get(number), stream.entries.get(number)
        if entry is None and core.is_7:
            group.release(number)
            continue
        if row is None:
            if not how.force or entry is None:
                continue
            row = Pending(None, core.now_ms, 1)
            group.pending.put(number, row)
        if row.consumer is not None and min_idle and core.now_ms - row.delivered_ms < min_idle:
            continue
        consumer = consumer or group.consumer(words[3], core.now_ms)
        row.delivered_ms = how.delivered_ms
        if how.times >= 0:
            row.times = how.times
        elif not how.just_id:
            row.times += 1
        group.give(number, row, consumer)
        consumer.active_ms = core.now_ms
        reply.append(id_text(number) if how.just_id else entry)
    return reply


class _Nack:
    """The options of XNACK, behind its IDs."""

    def __init__(self, words: list[bytes]) -> None:
        self.times: int | None = None
        self.force = False
        at = 0
        while at < len(words):
            option = words[at].upper()
            if option == b"FORCE":
                self.force, at = True, at + 1
            elif option == b"RETRYCOUNT" and at + 1 < len(words):
                self.times, at = integer(words[at + 1]), at + 2
            else:
                raise syntax_error()

    def count(self, mode: bytes, before: int) -> int:
        """Return how often an entry was delivered, as the group says from now on."""
        if self.times is not None:
            return self.times
        return {b"SILENT": max(before - 1, 0), b"FATAL": MOST_TIMES}.get(mode, before)


@command("XNACK", -7, "write", needs="has_nack")
def xnack(core: Core, words: list[bytes]) -> Reply:
    """XNACK key group SILENT|FAIL|FATAL IDS n id … [RETRYCOUNT n] [FORCE]"""
    mode = words[3].upper()
    if mode not in (b"SILENT", b"FAIL", b"FATAL"):
        raise ReplyError("ERR mode must be SILENT, FAIL, or FATAL")
    count = integer(words[5])
    if words[4].upper() != b"IDS" or not 1 <= count <= len(words) - 6:
        raise syntax_error()
    numbers, how = [entry_id(word) for word in words[6 : 6 + count]], _Nack(words[6 + count :])
    stream, group = group_of(core, words[1], words[2])
    nacked = 0
    for number in numbers:
        row = group.pending.get(number)
        if row is None and how.force and number in stream.entries:
            row = Pending(None, 0, 0)
            group.pending.put(number, row)
        if row is not None:
            group.disown(number, row)
            row.delivered_ms, row.times = 0, how.count(mode, row.times)
            nacked += 1
    if nacked:
        core.signal(words[1])
    return nacked


@command("XAUTOCLAIM", -6, "write")
def xautoclaim(core: Core, words: list[bytes]) -> Reply:
    """XAUTOCLAIM key group consumer min-idle start [COUNT n] [JUSTID]"""
    min_idle = max(integer(words[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM"), 0)
    start = interval_start(words[5])
    count, just_id, at = 100, False, 6
    while at < len(words):
        option = words[at].upper()
        if option == b"COUNT" and at + 1 < len(words):
            count = integer(words[at + 1], "ERR COUNT must be > 0")
            if not 1 <= count <= LAST_ID >> 68:
                raise ReplyError("ERR COUNT must be > 0")
            at += 2
        elif option == b"JUSTID":
            just_id, at = True, at + 1
        else:
            raise syntax_error()
    stream, group = group_of(core, words[1], words[2])
    consumer: Consumer | None = group.consumer(words[3], core.now_ms) if core.capabilities.is_7_2 else None
    claimed: list[Reply] = []
    deleted: list[Reply] = []
    looked_at = group.pending.between(start, LAST_ID, count * AUTOCLAIM_LOOKS)
    cursor = 0
    for number in looked_at:
        if count == 0:
            cursor = number
            break
        row, entry = group.pending.values[number], stream.entries.get(number)
        if entry is None and core.is_7:
            group.release(number)
            deleted.append(id_text(number))
            count -= 1
            continue
        if min_idle and core.now_ms - row.delivered_ms < min_idle:
            continue
        consumer = consumer or group.consumer(words[3], core.now_ms)
        row.delivered_ms = core.now_ms
        row.times += 0 if just_id else 1
        group.give(number, row, consumer)
        consumer.active_ms = core.now_ms
        claimed.append(id_text(number) if just_id else entry)
        count -= 1
    else:
        following = group.pending.between(looked_at[-1] + 1, LAST_ID, 1) if looked_at else []
        cursor = following[0] if following else 0
    reply: list[Reply] = [id_text(cursor), claimed]
    return [*reply, deleted] if core.is_7 else reply
