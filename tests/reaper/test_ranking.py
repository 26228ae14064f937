"""In which order replicas should serve a group: the same for all of them, spread evenly, and steady."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from reaper.sharing.ranking import ranked

GROUPS = [f"orders-{number}/billing" for number in range(1_000)]
REPLICAS = [f"host-{number}-4711-abcdef" for number in range(3)]


@given(st.lists(st.text(), unique=True), st.text())
def test_all_replicas_find_the_same_order_however_they_hear_of_each_other(replicas: list[str], group: str) -> None:
    order = ranked(replicas, group)
    assert order == ranked(reversed(replicas), group)
    assert sorted(order) == sorted(replicas)


def test_groups_are_spread_evenly_in_each_place_of_the_order() -> None:
    """A checksum in place of the hash would be linear: the scores of replicas with like names go together."""
    for place in range(3):
        shares = Counter(ranked(REPLICAS, group)[place] for group in GROUPS)
        assert all(270 < share < 400 for share in shares.values()), shares


def test_only_the_groups_of_a_replica_that_goes_move_and_they_go_to_the_next_in_the_order() -> None:
    for group in GROUPS:
        first, *others = ranked(REPLICAS, group)
        assert ranked([one for one in REPLICAS if one != first], group) == others
        assert ranked([one for one in REPLICAS if one != others[0]], group)[0] == first
