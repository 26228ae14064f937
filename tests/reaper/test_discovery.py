"""Patterns: which streams they find, and with which values their groups are watched."""

from typing import Any

import pytest

from reaper.settings import ReaperSettings, redis_pattern
from reaper.sharing.discovery import fitting
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import load_settings


def settings(*groups: dict[str, Any], **given: Any) -> ReaperSettings:
    return load_settings(ReaperSettings, arguments={"groups": groups, **given})


ORDERS = {"stream": "orders:*", "group": "billing", "exclude": ["orders:test:*", "orders:old"]}


def finds(settings: ReaperSettings, name: str) -> bool:
    """Return whether a pattern finds the group."""
    stream, group = name.split("/")
    return any(pattern.group == group for pattern in fitting([stream], settings).get(stream, ()))


@pytest.mark.parametrize(
    ("pattern", "stream", "fits"),
    [
        ("orders:*", "orders:1", True),
        ("orders:*", "orders:", True),
        ("orders:*", "orders", False),
        ("orders:*", "my-orders:1", False),
        ("*:jobs", "eu:jobs", True),
        ("*:jobs", "eu:jobs:1", False),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("a.b[1]?*", "a.b[1]?", True),
        ("a.b[1]?*", "axb1x", False),
        ("*", "anything", True),
    ],
)
def test_a_star_stands_for_any_characters_and_nothing_else_does(pattern: str, stream: str, fits: bool) -> None:
    assert finds(settings({"stream": pattern, "group": "billing"}), f"{stream}/billing") is fits


def test_redis_reads_a_pattern_as_we_do() -> None:
    assert redis_pattern(r"a*[b]?\^") == r"a*\[b\]\?\\\^"


@pytest.mark.parametrize(
    ("name", "is_found"),
    [("orders:1/billing", True), ("orders:test:1/billing", False), ("orders:old/billing", False),
     ("orders:older/billing", True), ("orders:1/audit", False)],
)  # fmt: skip
def test_exclude_lists_exceptions(name: str, is_found: bool) -> None:
    assert finds(settings(ORDERS), name) is is_found


@pytest.mark.parametrize("name", ["{orders}:retry:billing", "a}b", "{orders}", "x" * 300, ""])
def test_streams_of_ours_and_names_that_cannot_be_used_are_not_found(name: str) -> None:
    assert fitting([name, "orders"], settings({"stream": "*", "group": "billing"})).keys() == {"orders"}


def test_a_stream_can_have_groups_of_several_patterns() -> None:
    both = settings(ORDERS, {"stream": "*:1", "group": "audit"})
    assert [pattern.group for pattern in fitting(["orders:1"], both)["orders:1"]] == ["billing", "audit"]


def test_the_first_pattern_that_fits_gives_the_values_and_a_named_group_its_own() -> None:
    given = settings(
        {"stream": "orders:7", "group": "billing", "max_deliveries": 7},
        {"stream": "orders:eu:*", "group": "billing", "max_deliveries": 5},
        {"stream": "orders:*", "group": "billing", "max_deliveries": 4},
        max_deliveries=3,
    )
    found = {f"{stream}/billing": "orders:*/billing" for stream in ("orders:7", "orders:eu:1", "orders:1")}
    watched = given.watched_with(
        {**found, "mail/sender": "", "orders:2/billing": "", "gone:1/billing": "gone:*/billing"}
    )
    assert {group.keys.name: (group.max_deliveries, group.pattern) for group in watched} == {
        "orders:7/billing": (7, ""),
        "orders:eu:1/billing": (5, "orders:eu:*/billing"),
        "orders:1/billing": (4, "orders:*/billing"),
        "orders:2/billing": (4, ""),
        "mail/sender": (3, ""),
    }


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ({"stream": "orders", "group": "g", "exclude": ["x"]}, "exclude has no effect: stream 'orders' is no pattern"),
        ({"stream": "orders:*", "group": "bill*"}, "group 'bill*' contains '*'. Only stream can be a pattern"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_rejected(group: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        settings(group)
    assert sentence in str(raised.value)


def test_the_shortest_timeout_of_any_pattern_sets_the_pace() -> None:
    quick = settings({"stream": "orders:*", "group": "billing", "visibility_timeout": 4}, visibility_timeout=60)
    assert quick.registration < settings(ORDERS, visibility_timeout=60).registration
