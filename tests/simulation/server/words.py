"""Reads the words of a command, for example numbers and IDs of stream entries.

An ID is one number, ``milliseconds << 64 | sequence``, because it compares, sorts and bisects as fast as numbers do.
"""

import re

from tests.simulation.server.replies import ReplyError

SEQUENCE_BITS = 64
LAST_SEQUENCE = (1 << SEQUENCE_BITS) - 1
LAST_ID = (1 << 2 * SEQUENCE_BITS) - 1
_INTEGER = re.compile(rb"-?[1-9][0-9]*|0")
_PART = re.compile(rb"[0-9]+")
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
BAD_ID = "ERR Invalid stream ID specified as stream command argument"


def is_integer(word: bytes) -> bool:
    """Tell whether a word is a signed number of 64 bits, written as Redis writes it."""
    if not word or len(word) > 20 or word[0] > 57 or not _INTEGER.fullmatch(word):
        return False
    return len(word) < 19 or -(1 << 63) <= int(word) < 1 << 63


def integer(word: bytes, said: str = NOT_AN_INTEGER) -> int:
    """Read a signed number of 64 bits. Raises ReplyError with ``said``."""
    if not is_integer(word):
        raise ReplyError(said)
    return int(word)


def double(word: bytes, said: str = "ERR value is not a valid float") -> float:
    """Read a number as strtod does. Raises ReplyError with ``said``."""
    try:
        if word != word.strip() or b"_" in word:
            raise ReplyError(said)
        number = float(word)
    except ValueError:
        raise ReplyError(said) from None
    if number != number:
        raise ReplyError(said)
    return number


def entry_id(word: bytes, missing: int = 0, said: str = BAD_ID) -> int:
    """Read the ID of an entry. ``missing`` is the sequence if it has none. Raises ReplyError."""
    head, dash, tail = word.partition(b"-")
    if not _PART.fullmatch(head) or (dash and not _PART.fullmatch(tail)):
        raise ReplyError(said)
    ms, sequence = int(head), int(tail) if dash else missing
    if ms > LAST_SEQUENCE or sequence > LAST_SEQUENCE:
        raise ReplyError(said)
    return ms << SEQUENCE_BITS | sequence


def interval_start(word: bytes) -> int:
    """Read the lower bound of an interval, inclusive."""
    if word[:1] == b"(":
        bound = entry_id(word[1:])
        if bound == LAST_ID:
            raise ReplyError("ERR invalid start ID for the interval")
        return bound + 1
    return bound_id(word, 0)


def interval_end(word: bytes) -> int:
    """Read the upper bound of an interval, inclusive."""
    if word[:1] == b"(":
        bound = entry_id(word[1:], LAST_SEQUENCE)
        if bound == 0:
            raise ReplyError("ERR invalid end ID for the interval")
        return bound - 1
    return bound_id(word, LAST_SEQUENCE)


def bound_id(word: bytes, missing: int) -> int:
    """Read an ID, ``-`` or ``+``."""
    if word == b"-":
        return 0
    if word == b"+":
        return LAST_ID
    return entry_id(word, missing)


def id_text(number: int) -> bytes:
    """Return the ID as Redis writes it."""
    return b"%d-%d" % (number >> SEQUENCE_BITS, number & LAST_SEQUENCE)
