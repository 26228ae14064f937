"""A board on the server of the test."""

from collections.abc import Iterator

import pytest

from tests.explorer.board import Board
from tests.support.servers import RedisServer


@pytest.fixture
def board(server: RedisServer) -> Iterator[Board]:
    """A group whose scripts are loaded."""
    made = Board(server.port)
    made.prepare("stream", "reaper")
    yield made
    made.redis.close()
