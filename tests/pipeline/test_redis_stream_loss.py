"""The arithmetic of loss, against a model of a stream that remembers everything."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.pipeline.redis_stream.positions import Position, State, added_at, find_loss, initial_position

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("trim"), st.integers(0, 8)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
    ),
    max_size=12,
)


@dataclass
class Model:
    """A stream that knows what became of each entry: 1-0, 2-0, …"""

    fate: dict[int, str] = field(default_factory=dict)

    def run(self, steps: list[tuple[str, int]]) -> None:
        for verb, number in steps:
            getattr(self, verb)(number)

    def add(self, count: int) -> None:
        last = len(self.fate)
        self.fate |= {last + step: "there" for step in range(1, count + 1)}

    def trim(self, length: int) -> None:
        there = self.there()
        for entry in there[: max(0, len(there) - length)]:
            self.fate[entry] = "trimmed"

    def delete(self, entry: int) -> None:
        if self.fate.get(entry) == "there":
            self.fate[entry] = "deleted"

    def there(self) -> list[int]:
        return [entry for entry, fate in self.fate.items() if fate == "there"]

    def after(self, entry: int, fate: str) -> int:
        return sum(what == fate for number, what in self.fate.items() if number > entry)

    def state(self) -> State:
        there = self.there()
        deleted = max((entry for entry, fate in self.fate.items() if fate == "deleted"), default=0)
        return State(
            last=(len(self.fate), 0),
            length=len(there),
            first=(there[0], 0) if there else None,
            added=len(self.fate),
            deleted=(deleted, 0),
        )


@given(STEPS, STEPS, st.integers(0, 30))
def test_loss_is_found_exactly_when_unread_entries_were_trimmed(
    before_reading: list[tuple[str, int]], afterwards: list[tuple[str, int]], reading: int
) -> None:
    stream = Model()
    stream.run(before_reading)
    read = min(reading, len(stream.fate))
    gone_before = stream.after(read, "trimmed") + stream.after(read, "deleted")
    stream.run(afterwards)
    if gone_before:
        return  # not a place where a reader can be
    found = find_loss(Position((read, 0), added=read), stream.state())

    trimmed, deleted = stream.after(read, "trimmed"), stream.after(read, "deleted")
    if not trimmed:
        assert found is None
    elif not deleted:
        assert found is not None
        assert found.startswith(f"{trimmed} entr")


@given(STEPS, STEPS, st.integers(0, 10), st.integers(1, 10))
def test_the_number_of_a_cut_is_exact_or_unknown(
    before_reading: list[tuple[str, int]], afterwards: list[tuple[str, int]], reading: int, walking: int
) -> None:
    stream = Model()
    stream.run(before_reading)
    read = min(reading, len(stream.fate))
    stream.run(afterwards)
    unread = [entry for entry in stream.there() if entry > read][:walking]
    if unread:
        added = added_at(Position((read, 0), added=read), stream.state(), len(unread))
        assert added in (None, unread[-1])


def test_the_number_of_a_cut_is_known_where_nothing_was_deleted() -> None:
    position = Position((4, 0), added=4)
    assert added_at(position, State((9, 0), 8, (2, 0), 9, (0, 0)), walked=3) == 7
    assert added_at(position, State((9, 0), 3, (7, 0), 9, (0, 0)), walked=1) == 7


def test_an_older_server_counts_no_cuts() -> None:
    assert added_at(Position((4, 0)), State((9, 0), 8, (2, 0)), walked=3) is None


READ = Position((5, 0), added=5)


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (None, "it is gone"),
        (State((4, 0), 4, (1, 0), 4, (0, 0)), "its last ID is 4-0, and it had been read up to 5-0"),
        (State((9, 0), 2, (8, 0), 2, (0, 0)), "5 entries had been added to it up to 5-0, and now it counts 2 in all"),
        (State((29, 0), 9, (20, 0), 9, (0, 0)), "all of them are gone, and it counts 0 removed ones"),
        (State((9, 0), 3, (7, 0), 9, (0, 0)), "1 entry after 5-0 was trimmed before being read"),
        (State((9, 0), 0, None, 9, (0, 0)), "4 entries after 5-0 were trimmed before being read"),
    ],
)
def test_each_loss_has_its_sentence(state: State | None, found: str) -> None:
    assert found in (find_loss(READ, state) or "no loss")


@pytest.mark.parametrize(
    "state",
    [
        State((5, 0), 5, (1, 0), 5, (0, 0)),
        State((5, 0), 0, None, 5, (0, 0)),
        State((5, 0), 0, None),
        State((9, 0), 4, (6, 0), 9, (0, 0)),
        State((9, 0), 4, (6, 0), 9, (5, 0)),
        State((9, 0), 6, (4, 0), 9, (7, 0)),
        State((9, 0), 5, (5, 0)),
        State((9, 0), 2, (8, 0), 9, (6, 0)),
        State((9, 0), 2, (8, 0)),
    ],
)
def test_trimming_what_was_read_and_deleting_anything_is_no_loss(state: State) -> None:
    assert find_loss(READ, state) is None


@pytest.mark.parametrize("added", [None, 3])
def test_a_stream_that_has_not_been_read_may_be_missing(added: int | None) -> None:
    assert find_loss(Position((0, 0), added, initial=True), None) is None


def test_the_first_position_counts_what_was_trimmed_before() -> None:
    state = State(last=(9, 0), length=6, first=(4, 0), added=9, deleted=(0, 0))
    assert initial_position(state) == Position((0, 0), 3, initial=True)
    assert initial_position(None) == Position((0, 0), 0, initial=True)


def test_positions_survive_a_checkpoint() -> None:
    positions = [Position((5, 1), 7), Position((5, 1)), Position((0, 0), 0, initial=True)]
    assert [Position.from_json(position.to_json()) for position in positions] == positions
