"""The judge hears of losses by the log of the replicas, also after a part of a play that nobody reads."""

import logging
from collections.abc import Iterator

import pytest

from reaper.recovery.notes import GroupNotes
from reaper.settings import GroupSettings, ReaperSettings
from tests.simulation.plays import GROUP_LOST, LOST_DELIVERY
from tests.simulation.replica_log import read_log


@pytest.fixture
def _disabled() -> Iterator[None]:
    """Disable all logs, as a play does."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def _lose(notes: GroupNotes) -> None:
    notes.lost(b"w1", 2, is_certain=True)
    notes.lost(b"w2", 2, is_certain=False)
    notes.cleaned_up(0, is_group_lost=True)


@pytest.mark.usefixtures("_disabled")
def test_each_loss_is_heard_while_logs_are_disabled() -> None:
    [group] = ReaperSettings(groups=(GroupSettings(stream="orders", group="billing"),)).watched
    notes, heard = GroupNotes(group, lambda: None, set()), list[tuple[str, str]]()
    _lose(notes)  # a logger remembers that the level is disabled
    with read_log(lambda error, consumer: heard.append((error, consumer))):
        _lose(notes)
    _lose(notes)
    assert heard == [(LOST_DELIVERY, "w1"), (LOST_DELIVERY, "w2"), (GROUP_LOST, "")]
