"""prelude and messages.py read the same entry in the same way, also of careless producers."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.servers import RedisServer
from workers.protocol import scripts
from workers.protocol.messages import Metadata, Pairs, entry_order, read_metadata

ID = b"1700000000001-7"

READ = """
local fields = {}
for i = 2, #ARGV do
  fields[i - 1] = ARGV[i]
end
local job = open_job(ARGV[1], fields)
return { job.id, tostring(job.deliveries), job.generation, job.first_ms, digits(job.visibility_ms), job.user,
  job.bytes }
"""

REWRITTEN = (b"reaper.job", b"reaper.deliveries", b"reaper.generation", b"reaper.first_ms", b"reaper.consumers")

reserved = st.sampled_from((*REWRITTEN, b"reaper.visibility_ms", b"reaper.", b"reaper.unknown"))
numbers = st.integers(-5, 10**17).map(lambda number: str(number).encode()) | st.sampled_from(
    [b"", b"0", b"007", b"000000000000000", b"999999999999999", b"1000000000000000", b"1e3", b" 1", b"1\n", b"\xb2"]
)
values = numbers | st.binary(max_size=20) | st.integers(250, 260).map(lambda size: b"x" * size)
pairs_of_anybody = st.lists(st.tuples(reserved | st.binary(max_size=5), values), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def lua(server: RedisServer) -> Iterator[redis.Redis]:
    """A plain connection for many small evaluations."""
    with redis.Redis(port=server.port, protocol=2) as connection:
        yield connection


def evaluate(lua: redis.Redis, body: str, *arguments: bytes) -> Any:
    """Run ``body`` behind the prelude."""
    return lua.eval(scripts.script_text("workers.protocol", "prelude") + body, 0, *arguments)


@given(pairs=pairs_of_anybody)
@settings(max_examples=100)
@example(pairs=[(b"reaper.first_ms", b"999999999999999"), (b"reaper.generation", b"999999999999999")])
def test_both_sides_read_the_same_metadata(lua: redis.Redis, pairs: Pairs) -> None:
    flat = [part for pair in pairs for part in pair]
    job, deliveries, generation, first_ms, visibility_ms, user, size = evaluate(lua, READ, ID, *flat)
    in_lua = Metadata(job, int(float(deliveries)), int(generation), int(first_ms), int(visibility_ms))
    in_python = read_metadata(ID, pairs)
    if in_python.deliveries < 10**14:  # beyond it, Lua prints rounded; counts are cut to the limit anyway
        assert in_lua == in_python
    assert user == [part for name, value in pairs if name not in REWRITTEN for part in (name, value)]
    assert size == sum(map(len, flat))


ids = st.tuples(st.integers(0, 2**45), st.integers(0, 2**45)).map(lambda parts: "{}-{}".format(*parts).encode())


@given(one=ids, other=ids)
@settings(max_examples=100)
@example(one=b"9-0", other=b"10-0")
@example(one=b"1-9", other=b"1-10")
@example(one=b"1-1", other=b"1-1")
def test_entry_ids_are_compared_as_numbers(lua: redis.Redis, one: bytes, other: bytes) -> None:
    behind = bool(evaluate(lua, "return is_after(ARGV[1], ARGV[2])", one, other))
    assert behind == (entry_order(one) > entry_order(other))
