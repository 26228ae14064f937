"""Heartbeats: what one version writes, others read."""

import json

import pytest

from reaper.replicas import Replica, parse_replicas
from tests.operator.heartbeats import a_replica, a_report

NOW = 1_766_000_000_000


def test_a_heartbeat_reads_back_as_it_was_written() -> None:
    replica = a_replica("alice", a_report(next_due_ms=5, refusal="explicit_ids"), at_ms=NOW)
    assert Replica.from_json(replica.to_json()) == replica


def test_fields_of_a_newer_version_are_ignored_and_those_an_older_one_lacks_filled_in() -> None:
    replica = a_replica("alice", a_report(), at_ms=NOW)
    raw = json.loads(replica.to_json())
    raw["mood"] = raw["groups"]["orders/billing"]["mood"] = "sunny"
    del raw["renewals_failed"], raw["groups"]["orders/billing"]["false_recoveries"]
    assert Replica.from_json(json.dumps(raw)) == replica


TOO_LARGE = a_replica("alice", at_ms=NOW).to_json().replace(str(NOW), "1" + "0" * 400, 1).encode()
"""Sooner or later somebody would divide it."""


@pytest.mark.parametrize("garbage", [b"", b"\xff", b"3", b"[]", b"{}", b'{"id":"x"}', TOO_LARGE])
def test_what_is_no_heartbeat_is_refused_and_left_out(garbage: bytes) -> None:
    with pytest.raises(ValueError, match="Replica"):
        Replica.from_json(garbage)
    replica = a_replica("alice", at_ms=NOW)
    assert parse_replicas([garbage, replica.to_json().encode()]) == (replica,)
