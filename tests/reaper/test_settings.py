"""Settings of a replica: derived values, and values that exclude each other.

The sentences for single settings are held by the operator's tests.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.settings import GroupSettings, ReaperSettings, WatchedGroup
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import Redelivery
from workers.runtime.settings import load_settings


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("REAPER_"):
            monkeypatch.delenv(name)


def load(**arguments: Any) -> ReaperSettings:
    return load_settings(ReaperSettings, arguments=arguments)


def complaint(**arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load(**arguments)
    return str(raised.value)


def seconds(*values: float) -> tuple[timedelta, ...]:
    return tuple(timedelta(seconds=value) for value in values)


# ---- values derived from the TTL of the lease


@pytest.mark.parametrize(
    ("lease_ttl", "visibility_s", "lease_s"),
    [(10, 3_600, 10), (10, 30, 7.5), (10, 8, 2), (10, 2, 1), (0.5, 2, 0.5), (60, 30, 7.5)],
    ids=str,
)
def test_four_leases_fit_into_a_visibility_timeout_so_that_a_failover_is_no_gap(
    lease_ttl: float, visibility_s: float, lease_s: float
) -> None:
    settings = load(groups="orders/billing", lease_ttl=lease_ttl, visibility_timeout=visibility_s)
    assert (settings.lease_of(settings.watched[0].visibility_timeout),) == seconds(lease_s)


@given(
    st.integers(500, 10**9).map(lambda ms: timedelta(milliseconds=ms)),
    st.integers(100, 10**9).map(lambda ms: timedelta(milliseconds=ms)),
)
def test_two_ticks_may_fail_within_a_lease_and_a_timeout_sees_four(ttl: timedelta, visibility: timedelta) -> None:
    settings = ReaperSettings(groups="orders/billing", lease_ttl=ttl, visibility_timeout=visibility)
    [group] = settings.watched
    rounded = timedelta(microseconds=4)
    assert settings.tick_of(group) * 3 <= settings.lease_of(group.visibility_timeout) + rounded
    assert settings.tick_of(group) * 4 <= visibility + rounded


@pytest.mark.parametrize(
    ("lease_ttl", "visibility_s", "registration_s"), [(60, 3_600, 1.25), (10, 30, 1.25), (10, 9, 0.375), (1, 4, 0.2)]
)
def test_a_dead_replica_is_known_as_gone_before_its_leases_expire(
    lease_ttl: float, visibility_s: float, registration_s: float
) -> None:
    settings = load(groups="orders/billing", lease_ttl=lease_ttl, visibility_timeout=visibility_s)
    assert (settings.registration,) == seconds(registration_s)
    assert settings.registration * 4 < settings.lease_of(settings.watched[0].visibility_timeout)


# ---- groups


def test_groups_are_written_in_one_string() -> None:
    assert load(groups=" orders/billing, orders/audit ,").groups == (
        GroupSettings(stream="orders", group="billing"),
        GroupSettings(stream="orders", group="audit"),
    )


def test_the_last_slash_parts_stream_from_group() -> None:
    assert load(groups="eu/orders/billing").groups == (GroupSettings(stream="eu/orders", group="billing"),)


def test_groups_come_from_a_file_as_tables_with_their_own_values(tmp_path: Path) -> None:
    file = tmp_path / "reaper.toml"
    file.write_text(
        """
        visibility_timeout = 60
        [[groups]]
        stream = "orders"
        group = "billing"
        [[groups]]
        stream = "mails"
        group = "send"
        visibility_timeout = "2.5s"
        max_deliveries = 5
        redelivery = "retry-stream"
        """
    )
    assert load_settings(ReaperSettings, file=file).watched == (
        WatchedGroup(
            stream="orders",
            group="billing",
            visibility_timeout=timedelta(seconds=60),
            max_deliveries=3,
            redelivery=Redelivery.STREAM,
        ),
        WatchedGroup(
            stream="mails",
            group="send",
            visibility_timeout=timedelta(seconds=2.5),
            max_deliveries=5,
            redelivery=Redelivery.RETRY_STREAM,
        ),
    )


@pytest.mark.parametrize("namespace", ["a:b", "a{b", "a}b"])
def test_a_namespace_that_would_break_keys_is_rejected(namespace: str) -> None:
    assert complaint(namespace=namespace) == (
        f"namespace '{namespace}' contains '{{', '}}' or ':'. Use letters, digits, '-' and '_'."
    )


def test_a_namespace_too_long_for_its_observers_is_rejected_where_they_start() -> None:
    longest = "n" * 255
    assert load(namespace=longest).namespace_keys.live == f"{{{longest}}}:live"
    assert "is longer than 255 bytes" in complaint(namespace=longest, observe=True)


def test_observers_have_keys_of_their_own() -> None:
    assert (load().namespace_keys.live, load(observe=True).namespace_keys.live) == (
        "{reaper}:live",
        "{reaper-observe}:live",
    )


# ---- scanning


def test_a_group_is_scanned_for_new_deliveries_more_often_than_in_full() -> None:
    settings = load(groups="orders/billing", full_scan_interval=2)
    assert (settings.tick_of(settings.watched[0]),) == seconds(0.5)


# ---- names


def test_variables_that_are_no_settings_are_let_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REAPER_FAILPOINTS", str(tmp_path))
    monkeypatch.setenv("REAPER_CONFIG", "reaper.toml")
    assert load() == ReaperSettings()
