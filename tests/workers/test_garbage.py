"""Programs of ours collect garbage seldom; what they were started with is never looked at again."""

import gc
import subprocess
import sys

from workers.runtime.event_loop import ALLOCATIONS

_PROGRAM = """
import gc
from workers.runtime.event_loop import collect_seldom
collect_seldom()
print(gc.isenabled(), gc.get_threshold()[0], gc.get_freeze_count() > 1000)
"""


def test_collections_become_rare_and_leave_alone_what_is_there() -> None:
    before = gc.get_threshold()
    told = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", str(ALLOCATIONS), "True"]
    assert gc.get_threshold() == before  # importing it changes nothing: a library leaves that to its program
