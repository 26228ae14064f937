"""False recoveries: which settlements prove that a third-party consumer was alive after a recovery."""

import pytest

from reaper.recovery.false_recoveries import FalseRecoveries


def recovered_from(consumer: bytes) -> FalseRecoveries:
    """Return the watch of a source in which something was recovered from ``consumer``, which held two entries more."""
    watch = FalseRecoveries()
    watch.scan_begins()
    watch.scan_ends()
    watch.recovered(consumer, [b"2-0", b"3-0"])
    return watch


def test_a_delivery_that_a_full_scan_met_after_the_recovery_and_that_is_gone_proves_it() -> None:
    watch = recovered_from(b"web")
    watch.scan_begins()
    watch.scan_ends()
    assert watch.gone([b"1-0", b"2-0", b"3-0"]) == [b"web", b"web"]
    assert watch.gone([b"2-0"]) == []


def test_a_delivery_that_no_full_scan_met_after_the_recovery_proves_nothing() -> None:
    """The consumer may have settled it, and died, before the recovery."""
    watch = recovered_from(b"web")
    assert watch.gone([b"2-0"]) == []
    watch.scan_begins()
    assert watch.gone([b"3-0"]) == []
    watch.scan_ends()
    assert watch.gone([b"2-0", b"3-0"]) == []


def test_a_scan_that_was_under_way_at_the_recovery_proves_nothing() -> None:
    watch = FalseRecoveries()
    watch.scan_begins()
    watch.recovered(b"web", [b"2-0"])
    watch.scan_ends()
    assert watch.gone([b"2-0"]) == []


def test_a_delivery_that_a_call_of_ours_may_have_ended_proves_nothing() -> None:
    watch = recovered_from(b"web")
    watch.scan_begins()
    watch.scan_ends()
    watch.forget([b"2-0"])
    assert watch.gone([b"2-0", b"3-0"]) == [b"web"]


@pytest.mark.parametrize("consumer", [b"host-1~0123456789ab", b"", b"marked-by-reaper"])
def test_consumers_of_ours_are_not_watched(consumer: bytes) -> None:
    watch = recovered_from(consumer)
    watch.scan_begins()
    watch.scan_ends()
    assert watch.gone([b"2-0"]) == []
