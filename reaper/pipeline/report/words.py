"""Writes names, times and numbers for the report. Pure."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from workers.protocol.keys import stream_of_journal

NOTHING = "\N{EN DASH}"
LONGEST_NAME = 64
"""Characters of a name that is shown whole."""
_AMBIGUOUS = set('/"(\N{MIDDLE DOT}')
_JOINT = " \N{MIDDLE DOT} "

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def group(row: Mapping[str, Any]) -> str:
    """Return a row's consumer group in its written form ``orders/billing``. No two groups are written alike."""
    return group_of(stream_of_journal(row["stream"]), str(row["group"]))


def group_of(stream: str, group: str) -> str:
    """Return a stream and a group as one name. Each is quoted if it could be read in more than one way."""
    return f"{_quoted(stream)}/{_quoted(group)}"


def kind(row: Mapping[str, Any]) -> str:
    """Return a row's consumer group and type of job."""
    return f"{group(row)}{_JOINT}{_quoted(str(row['type']))}" if row.get("type") else group(row)


def _quoted(name: str) -> str:
    """Quote a text that could be taken for another name, or that begins like names that legends leave out.

    Pages show no blanks at an end, several as one, and no characters that turn or hide the following ones. Long names
    are cut, and distinguished by a hash of them.
    """
    name = brief(name)
    plain = name.isprintable() and name == " ".join(name.split())
    if plain and name[:1] not in ("", "_") and not set(name) & _AMBIGUOUS:
        return name
    escaped = json.dumps(name, ensure_ascii=False).replace("  ", " \\u0020")
    return "".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" for sign in escaped)


def brief(name: str) -> str:
    """Return a name that is not too long, and is no other one's."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME // 2]}… {hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def namespace(row: Mapping[str, Any]) -> str:
    """Return the namespace whose journal a row is from."""
    return brief(stream_of_journal(row["stream"]))


def replica(holder: str) -> str:
    """Return the replica behind a lease's holder, ``replica.nonce@TTL``."""
    return brief(holder.rpartition("@")[0].rpartition(".")[0] or holder)


def duration(ms: float | None) -> str:
    """Write a duration with three significant digits, like ``870 ms``, ``1.25 s`` or ``2.5 min``."""
    if ms is None:
        return NOTHING
    for unit, size in _UNITS:
        if abs(ms) >= size:
            return f"{_significant(ms / size)} {unit}"
    return f"{_significant(ms)} ms"


def count(number: float | None) -> str:
    """Write a number like ``12,345``."""
    return NOTHING if number is None else f"{number:,.0f}"


def share(permille: float | None) -> str:
    """Write thousandths as a percentage."""
    return NOTHING if permille is None else f"{_significant(permille / 10)} %"


def instant(ms: float | None) -> str:
    """Write an instant, UTC."""
    return NOTHING if ms is None else f"{moment(ms):%Y-%m-%d %H:%M:%S}"


def moment(ms: float) -> datetime:
    """Return an instant of the server's clock."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def _significant(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
