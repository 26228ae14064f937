"""A replica's heartbeat can be read back, and shows that it is alive."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from reaper.replicas import GroupReport, Replica, Whole
from workers.protocol.events import MOST

wholes = st.integers(-MOST, MOST)


def numbers_of(told: type) -> dict[str, st.SearchStrategy[int]]:
    """Return what its numbers may be: Hypothesis does not know the bounds of `Whole`."""
    return {one.name: wholes for one in fields(told) if one.type == Whole}


reports = st.builds(GroupReport, **numbers_of(GroupReport))


@given(st.builds(Replica, groups=st.dictionaries(st.text(), reports, max_size=3), **numbers_of(Replica)))
def test_every_heartbeat_reads_back_as_it_was_written(replica: Replica) -> None:
    assert Replica.from_json(replica.to_json()) == replica


def replica(**groups: int) -> Replica:
    """Return one with reports on ``groups``, by the token of the term."""
    reports = {
        name: GroupReport(group=f"{name}/g", visibility_ms=1, max_deliveries=1, redelivery="stream", token=token)
        for name, token in groups.items()
    }
    return Replica(
        id="a-1", name="a", host="h", pid=1, version="1", started_ms=0, at_ms=100_000, heartbeat_ms=5_000,
        groups=reports,
    )  # fmt: skip
