"""Every script keeps the rules that the others rely on, and its header describes it."""

import re
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.processes import ROOT
from workers.protocol.scripts import load_script, script_text

PRELUDE = "prelude"
KEYS = "--- @keys"
"""Scripts that move jobs: this part describes their first eight keys and two arguments."""
SHARED = {PRELUDE, "keys"}
FOLDERS = {
    "workers.protocol": ROOT / "workers/protocol/lua",
    "reaper": ROOT / "reaper/lua",
}
SCRIPTS = [
    pytest.param(package, file.stem, id=file.stem)
    for package, folder in FOLDERS.items()
    for file in sorted(folder.glob("*.lua"))
    if file.stem not in SHARED
]
each_script = pytest.mark.parametrize(("package", "name"), SCRIPTS)

NEEDS_NO_MEMORY = {
    "count_after": "reads only",
    "look_at_group": "reads only",
    "inspect_layout": "reads only",
    "find_scheduled": "reads only",
    "enqueue": "a producer is rejected, and nothing is enqueued",
}
"""Scripts that need no harmless write in front: when memory is full, what they do is allowed, or may be rejected."""

_HARMLESS_WRITE = re.compile(r"open_for_(?:writing|copies)\(|'XACK', \w+, \w+, '0-0'|'HDEL', [\w\[\]]+, ''|'PERSIST', ")
_CALL = re.compile(r"redis\.p?call\('(\w+)'(?:, ('[A-Z]+'|[^,)]+))?(?:, ([^,)]+))?")
_SUBCOMMANDS = {"XGROUP", "XINFO"}
_WITHOUT_KEY = {"TIME"}


def read(package: str, name: str) -> tuple[str, str]:
    """Return a script's header and its body."""
    lines = (FOLDERS[package] / f"{name}.lua").read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    code = [line.split(" -- ")[0] for line in lines[end:] if not line.lstrip().startswith("--")]
    return "\n".join(lines[:end]), "\n".join(code)


def numbers(kind: str, text: str) -> set[int]:
    """Return the literal indexes of KEYS or ARGV in ``text``."""
    return {int(number) for number in re.findall(rf"{kind}\[(\d+)", text)}


@each_script
def test_the_header_tells_keys_arguments_results_and_fence(package: str, name: str) -> None:
    header, _ = read(package, name)
    lines = header.splitlines()
    assert not lines[0].startswith("-- KEYS"), "the first line says the transition in words"
    for part in ("-- KEYS[1]", "-- Returns ", "-- Fence: "):
        assert any(line.startswith(part) for line in lines), f"the header has no {part!r}"


@each_script
@pytest.mark.parametrize("kind", ["KEYS", "ARGV"])
def test_the_header_describes_each_key_and_argument_that_is_used(package: str, name: str, kind: str) -> None:
    header, body = read(package, name)
    described = numbers(kind, header)
    if KEYS in (FOLDERS[package] / f"{name}.lua").read_text():
        described |= set(range(1, 9 if kind == "KEYS" else 3))
        body += "".join(f" {kind}[{number}]" for number in range(1, 9 if kind == "KEYS" else 3))
    assert described == set(range(1, len(described) + 1))
    open_ended = max(described, default=0) if re.search(rf"{kind}\[\d+…\]", header) else None
    used = numbers(kind, body)
    assert used - described == set()
    assert described - used <= {open_ended, *_used_by_offset(kind, body), *_named_only(kind, header)}


def _named_only(kind: str, header: str) -> set[int]:
    """Return indexes of keys that a call names so that Redis rejects it where they are missing."""
    return {int(number) for number in re.findall(rf"{kind}\[(\d+)\].*named only", header)}


def _used_by_offset(kind: str, body: str) -> set[int]:
    """Return indexes that a loop or a table of names reaches."""
    first = re.search(r"local first = (\d+)", body)
    looped = {int(first[1])} if first else set()
    shifted = {int(shift) + n for shift in re.findall(rf"{kind}\[i \+ (\d+)\]", body) for n in range(1, 5)}
    ranges = re.findall(r"for i = (\d+), (\d+) do", body) if f"{kind}[i]" in body else []
    return looped | shifted | {number for low, high in ranges for number in range(int(low), int(high) + 1)}


@each_script
def test_no_script_builds_a_key(package: str, name: str) -> None:
    _, body = read(package, name)
    for call, first, second in _CALL.findall(body):
        key = second if call in _SUBCOMMANDS else first
        if call in _WITHOUT_KEY:
            continue
        assert re.fullmatch(r"KEYS\[\w+\]|[a-z_]+", key), f"{call} is given {key!r}"
        assert not re.search(rf"\b{re.escape(key)} = .*\.\.", body), f"{key!r} is put together"


@each_script
def test_no_script_walks_the_whole_database_or_asks_other_clocks(package: str, name: str) -> None:
    _, body = read(package, name)
    called = {call for call, _, _ in _CALL.findall(body)}
    assert called & {"KEYS", "SCAN", "RANDOMKEY", "FLUSHALL", "FLUSHDB"} == set()
    assert "math.random" not in body


@each_script
def test_the_journal_can_stop_no_effect(package: str, name: str) -> None:
    _, body = read(package, name)
    assert not re.search(r"redis\.call\('XADD', journal", body)


@each_script
def test_an_effect_begins_with_a_harmless_write(package: str, name: str) -> None:
    _, body = read(package, name)
    if name == "ack":
        body = body.replace("redis.call('XACK', source, group, entry_id)", "'XACK', source, group, '0-0'")  # its effect
    assert bool(_HARMLESS_WRITE.search(body)) != (name in NEEDS_NO_MEMORY)


@each_script
def test_what_a_script_uses_of_the_shared_parts_is_in_it_and_has_a_value(package: str, name: str) -> None:
    parts = "\n".join(script_text("workers.protocol", part) for part in SHARED)
    shared = {
        word
        for names in re.findall(r"^local (?:function )?(\w+(?:, \w+)*)", parts, re.MULTILINE)
        for word in names.split(", ")
    }
    source = re.sub(r"--.*$", "", load_script(package, name).source, flags=re.MULTILINE)
    used = {word for word in shared if re.search(rf"(?<![.\w]){word}\(", source)}
    given = set(re.findall(r"function (\w+)\(|(?:^|\s)(\w+) = ", source, re.MULTILINE))
    together = {word for names in re.findall(r"local (\w+(?:, \w+)+) = ", source) for word in names.split(", ")}
    assert used - {word for pair in given for word in pair} - together == set()


def test_every_script_is_used() -> None:
    python = "\n".join(
        file.read_text() for folder in ("workers", "reaper") for file in Path(ROOT, folder).rglob("*.py")
    )
    unused = [param.id for param in SCRIPTS if f'"{param.id}"' not in python]
    assert unused == []


@pytest.mark.anyio
async def test_every_script_compiles(client: Redis) -> None:
    for package, folder in FOLDERS.items():
        for file in folder.glob("*.lua"):
            if file.stem not in SHARED:
                script = load_script(package, file.stem)
                digest: Any = await client.script_load(script.source)  # raises where it does not compile
                assert digest in (script.digest, script.digest.encode())
