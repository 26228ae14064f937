"""A model of Redis: exactly the commands that this project uses, in one thread, on a clock that is given.

It is not believed: `tests/simulation/test_differential.py` compares it with the real servers at hand.
"""

from tests.simulation.server.core import Handle, ServerClock
from tests.simulation.server.server import ModelServer
from tests.simulation.server.sessions import Session

__all__ = ["Handle", "ModelServer", "ServerClock", "Session"]
