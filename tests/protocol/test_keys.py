"""Keys of a group lie in one hash slot, never collide, and reject names that cannot work."""

import re
from dataclasses import astuple, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from tests.support.processes import ROOT
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import (
    MAX_NAME_LENGTH,
    TYPES,
    GroupKeys,
    group_keys,
    is_worker,
    namespace_keys,
    stream_keys,
    stream_of_journal,
)

DESCRIBED = re.compile(
    r"^-- KEYS\[\d+\] .*?(\S*(?:orders|\{reaper\})\S*) +(stream|hash|string|sorted|counter)\b", re.MULTILINE
)
names = st.text(st.sampled_from("{}ab:é") | st.characters(), min_size=1, max_size=30)


def redis_keys(keys: GroupKeys) -> list[str]:
    """Return everything that is a key of Redis: all but the group's name."""
    return [getattr(keys, field.name) for field in fields(keys) if field.name != "group"]


def test_keys_are_spelt_as_documented() -> None:
    assert astuple(group_keys("orders", "billing")) == (
        "orders",
        "billing",
        "{orders}:retry:billing",
        "{orders}:scheduled",
        "{orders}:scheduled:billing",
        "{orders}:dead:billing",
        "{orders}:lease:billing",
        "{orders}:group:billing",
        "{orders}:quarantine:billing",
        "{orders}:journal",
    )
    assert group_keys("{shop}orders", "g").dead == "{shop}orders:dead:g", "a name that has a tag keeps it"
    assert group_keys("orders", "billing").name == "orders/billing"
    assert astuple(stream_keys("orders")) == ("orders", "{orders}:scheduled", "{orders}:enqueued")
    assert astuple(namespace_keys("prod")) == (
        "prod",
        "{prod}:replicas",
        "{prod}:groups",
        "{prod}:live",
        "{prod}:drained",
        "{prod}:watched",
        "{prod}:scanned",
        "{prod}:drills:journal",
    )


@given(stream=names, group=names)
def test_all_keys_of_a_group_share_a_slot_or_the_name_is_rejected(stream: str, group: str) -> None:
    try:
        keys = redis_keys(group_keys(stream, group))
    except ConfigurationError:
        return
    assert len({key_slot(key.encode()) for key in keys}) == 1
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("stream", ["orders", "{shop}orders", "eu:{shop}:orders", "a{b", "ordérs", "a b"])
def test_ordinary_names_and_names_with_a_tag_are_accepted(stream: str) -> None:
    assert {key_slot(key.encode()) for key in redis_keys(group_keys(stream, "g"))} == {key_slot(stream.encode())}


REJECTED = {
    "": "stream is empty",
    "x" * (MAX_NAME_LENGTH + 1): "longer than 255 bytes",
    "é" * 128: "longer than 255 bytes",
    "a\nb": "control characters",
    "a\x7f": "control characters",
    "{orders}": "only a hash tag",
    "orders}": r"contains '}' outside a hash tag",
    "{}orders": r"contains '}' outside a hash tag",
    "\udcff": "not UTF-8 text",
}


@pytest.mark.parametrize(("stream", "sentence"), REJECTED.items(), ids=[ascii(name[:10]) for name in REJECTED])
def test_a_stream_that_cannot_work_is_rejected_with_a_sentence(stream: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        group_keys(stream, "billing")
    with pytest.raises(ConfigurationError, match="group is empty"):
        group_keys("orders", "")


@pytest.mark.parametrize("namespace", ["", "a:b", "{a}", "a}", "x" * 300])
def test_a_namespace_that_cannot_work_is_rejected(namespace: str) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        namespace_keys(namespace)


def test_every_key_has_a_type_and_scripts_say_the_same() -> None:
    places = (group_keys("orders", "billing"), stream_keys("orders"), namespace_keys("reaper"))
    assert {one.name for place in places for one in fields(place)} - TYPES.keys() == {"group", "namespace"}
    spelt = {
        getattr(place, one.name): TYPES[one.name] for place in places for one in fields(place) if one.name in TYPES
    }
    scripts = [file for folder in ("workers/protocol/lua", "reaper/lua") for file in (ROOT / folder).glob("*.lua")]
    told = {row for script in scripts for row in DESCRIBED.findall(script.read_text(encoding="utf-8"))}
    kinds = {"sorted": "zset", "counter": "string"}
    found = {(key, kinds.get(kind, kind)) for key, kind in told if key in spelt}
    of_drills = {namespace_keys("reaper").journal}
    assert {key for key, _ in found} == set(spelt) - of_drills, "a key that no script describes"
    assert {(key, kind) for key, kind in found if spelt[key] != kind} == set()


@pytest.mark.parametrize("stream", ["orders", "a:b", "{shop}orders", "{shop}a:b", "a:journal", "a{b", "{a{b}c"])
def test_a_stream_is_known_by_its_journal(stream: str) -> None:
    assert stream_of_journal(group_keys(stream, "billing").journal) == stream


@pytest.mark.parametrize(
    ("consumer", "is_ours"),
    [
        (b"host~5a56db625952", True),
        (b"billing.5a56db625952", False),
        (b"5a56db625952", False),
        (b"host~5a56db62595", False),
        (b"host~5a56db625952-1", False),
    ],
)
def test_a_consumer_that_ends_in_the_name_of_a_docker_host_is_no_worker_of_ours(
    consumer: bytes, *, is_ours: bool
) -> None:
    """Otherwise its poison jobs would be released for ever, because no such worker reports that they begin."""
    assert is_worker(consumer) is is_ours
