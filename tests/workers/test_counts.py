"""What a worker says at its end of all that it did."""

from dataclasses import fields

from workers.loop.reporting import Counts


def test_counts_are_told_in_words_and_nothing_of_what_there_is_not() -> None:
    assert str(Counts()) == "nothing was read"
    assert str(Counts(read=12_345, acked=12_340, dead_lettered=1, handed_back=4)) == (
        "12,345 read, 12,340 acked, 1 dead-lettered, 4 handed back"
    )


def test_every_count_has_a_word_that_is_no_name_of_code() -> None:
    told = str(Counts(*range(1, len(fields(Counts)) + 1)))
    assert len(told.split(", ")) == len(fields(Counts))
    assert not set("_=()") & set(told)
