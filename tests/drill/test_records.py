"""The lines that executions write."""

import pytest

from reaper.drill.records import Line, Step, read_lines


def test_lines_are_read_back_as_workers_write_them() -> None:
    text = "start 3 17-0 99 12.5 abc\ndone 3 17-0 99 13.25\n"
    assert list(read_lines(text)) == [
        Line(Step.START, 3, "17-0", 99, 12.5, "abc"),
        Line(Step.DONE, 3, "17-0", 99, 13.25),
    ]


def test_a_line_that_is_none_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="hello"):
        list(read_lines("hello 3 17-0 99 12.5\n"))
