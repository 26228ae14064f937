"""Who is at work on what he holds: known of what was handed out together and settled, and of nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from reaper.recovery.backlogs import MOST_GRAINS, MOST_HELD, TOGETHER_MS, Backlogs, is_foreign
from reaper.recovery.living import MOST_KEPT, MOST_NAMED, SLACK_MS, Living
from workers.protocol.keys import RESTORED_CONSUMER

HANDED, LOOKED, FOUND = 100_000, 125_000, 130_000
"""When two deliveries are handed out, seen to be pending, and when one of them is found settled."""


def entry(number: int) -> bytes:
    return b"%d-0" % number


def rows(*numbers: int, consumer: bytes = b"web", idle_ms: int = LOOKED - HANDED) -> list[list[object]]:
    return [[entry(number), consumer, idle_ms, 1] for number in numbers]


def after_a_look(*numbers: int, **facts: object) -> Backlogs:
    backlogs = Backlogs(memory_ms=30_000)
    backlogs.looked(rows(*numbers, **facts), entry(1), LOOKED, to_the_end=True)  # type: ignore[arg-type]
    return backlogs


def test_what_is_settled_tells_of_what_was_handed_out_with_it() -> None:
    backlogs = after_a_look(1, 2)
    backlogs.gone([entry(1)], FOUND)
    assert backlogs.at_work(b"web", [HANDED], since_ms=LOOKED)
    assert not backlogs.at_work(b"web", [HANDED], since_ms=LOOKED + 1), "it was alive when it was looked at: no later"
    assert not backlogs.at_work(b"other", [HANDED], since_ms=LOOKED)


def test_what_was_handed_out_later_tells_nothing_of_what_was_handed_out_before() -> None:
    backlogs = after_a_look(1)
    backlogs.gone([entry(1)], FOUND)
    assert backlogs.at_work(b"web", [HANDED + TOGETHER_MS], since_ms=LOOKED)
    assert not backlogs.at_work(b"web", [HANDED - TOGETHER_MS - 1], since_ms=LOOKED)


def test_what_we_may_have_ended_tells_nothing() -> None:
    backlogs = after_a_look(1, 2)
    asked = backlogs.asks([entry(1), entry(3)])
    backlogs.looked(rows(1, 2, 3), entry(1), FOUND, to_the_end=True)
    backlogs.looked(rows(2), entry(1), FOUND, to_the_end=True)
    assert (list(asked), backlogs.first()) == ([entry(1)], entry(2))
    assert not backlogs.at_work(b"web", [FOUND], since_ms=0)
    backlogs.answered([entry(1)])
    backlogs.looked(rows(1, 2), entry(1), FOUND, to_the_end=True)
    backlogs.looked(rows(2), entry(1), FOUND + 1, to_the_end=True)
    assert backlogs.at_work(b"web", [FOUND], since_ms=FOUND), "that was somebody else"


def test_a_look_that_is_older_than_an_answer_tells_nothing_of_what_was_asked_for() -> None:
    backlogs = after_a_look(1, 2)
    with backlogs.looking():
        backlogs.asks([entry(1)])
        backlogs.answered([entry(1)])  # it was recovered, and then the reply to the look is read
        backlogs.looked(rows(1, 2), entry(1), FOUND, to_the_end=True)
    with backlogs.looking():
        backlogs.looked(rows(2), entry(1), FOUND + 1, to_the_end=True)
    assert (len(backlogs), backlogs.at_work(b"web", [FOUND], since_ms=0)) == (1, 0)


def test_a_look_that_does_not_see_a_delivery_tells_that_it_is_settled_only_where_it_has_looked() -> None:
    backlogs = after_a_look(1, 2, 3, 4)
    backlogs.looked(rows(3), entry(2), FOUND, to_the_end=False)
    assert len(backlogs) == 3, "2 lay within; 1 before, 4 behind"
    assert backlogs.at_work(b"web", [HANDED], since_ms=LOOKED)


def test_who_is_ours_or_has_been_robbed_of_it_by_another_is_not_at_work() -> None:
    ours = b"host.0123456789ab"
    assert (is_foreign(b"web-1"), is_foreign(ours), is_foreign(RESTORED_CONSUMER.encode())) == (True, False, False)
    assert len(after_a_look(1, consumer=ours)) == len(after_a_look(1, idle_ms=-1)) == 0
    backlogs = after_a_look(1)
    backlogs.looked(rows(1, consumer=b"thief"), entry(1), LOOKED, to_the_end=True)
    backlogs.gone([entry(1)], FOUND)
    assert not backlogs.at_work(b"web", [HANDED], since_ms=0)


@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 30_000)), max_size=20), st.integers(0, 130_000))
def test_it_is_at_work_on_what_is_no_older_than_what_it_may_have_settled_lately(
    found: list[tuple[int, int]], now_ms: int
) -> None:
    backlogs = Backlogs(memory_ms=30_000)
    for number, (handed_ms, took_ms) in enumerate(found):
        backlogs.looked(rows(number + 1, idle_ms=took_ms), entry(number + 1), handed_ms + took_ms, to_the_end=False)
        backlogs.gone([entry(number + 1)], handed_ms + took_ms)
    lately = [handed for handed, took in found if handed + took >= max(now_ms, *(h + t for h, t in found)) - 30_000]
    since = backlogs.at_work_on(max([now_ms, *(handed + took for handed, took in found)]))
    assert all(backlogs.settled_lately(b"web", handed) is not None for handed in lately)
    if lately:
        assert min(lately) - TOGETHER_MS <= since[b"web"] <= min(lately)
    else:
        assert since == {}


def test_it_stays_small() -> None:
    backlogs = Backlogs(memory_ms=10**9)
    for at_ms in range(0, 4 * MOST_GRAINS * 500, 500):
        backlogs.looked(rows(at_ms + 1, idle_ms=0), entry(at_ms + 1), at_ms, to_the_end=False)
        backlogs.gone([entry(at_ms + 1)], at_ms)
    assert len(backlogs._settled[b"web"]) == MOST_GRAINS
    assert backlogs.at_work(b"web", [0], since_ms=0), "what was handed out first is kept"
    backlogs.looked(rows(*range(1, MOST_HELD + 100)), entry(1), LOOKED, to_the_end=True)
    assert len(backlogs) == MOST_HELD


# ---- those who were robbed


def test_who_reads_after_something_was_taken_has_read_on() -> None:
    living = Living()
    living.taken(b"web", 1_000, at_work=2, others=3)
    living.looked({b"web": 0}, 1_000 + SLACK_MS)
    assert (living.at_work, living.read_on) == (2, 0), "it may have been before"
    for _ in range(2):
        living.looked({b"web": 10, b"other": 0}, 20_000)
    assert (living.read_on, living.named(), living.named_read_on()) == (3, {b"web": 2}, {b"web": 3})


def test_who_is_not_there_any_more_has_not_read_on() -> None:
    living = Living()
    living.taken(b"web", 1_000, at_work=0, others=3)
    living.looked({}, 20_000)
    assert (living.read_on, living.named(), living.named_read_on()) == (0, {}, {})


def test_of_many_the_latest_are_remembered_and_the_worst_are_named() -> None:
    living = Living()
    for number in range(2 * MOST_KEPT):
        living.taken(b"%d" % number, number, at_work=number, others=0)
    worst = range(2 * MOST_KEPT - 1, 2 * MOST_KEPT - 1 - MOST_NAMED, -1)
    assert list(living.named()) == [b"%d" % number for number in worst]
    assert len(living._robbed) == MOST_KEPT
