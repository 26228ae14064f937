"""In which order replicas should serve a group: the same for all of them, spread evenly, and steady."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from reaper.sharing.ranking import ranked

PAIRS = [f"orders-{number}/billing" for number in range(1_000)]
REPLICAS = [f"host-{number}-4711-abcdef" for number in range(3)]


@given(st.lists(st.text(), unique=True), st.text())
def test_all_replicas_find_the_same_order_however_they_hear_of_each_other(replicas: list[str], pair: str) -> None:
    order = ranked(replicas, pair)
    assert order == ranked(reversed(replicas), pair)
    assert sorted(order) == sorted(replicas)


def test_groups_are_spread_evenly_in_each_place_of_the_order() -> None:
    """A checksum in place of the hash would be linear: the scores of replicas with like names go together."""
    for place in range(3):
        shares = Counter(ranked(REPLICAS, pair)[place] for pair in PAIRS)
        assert all(270 < share < 400 for share in shares.values()), shares


def test_only_the_groups_of_a_replica_that_goes_move_and_they_go_to_the_next_in_the_order() -> None:
    for pair in PAIRS:
        first, *others = ranked(REPLICAS, pair)
        assert ranked([one for one in REPLICAS if one != first], pair) == others
        assert ranked([one for one in REPLICAS if one != others[0]], pair)[0] == first
