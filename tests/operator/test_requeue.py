"""`reaper requeue`: what it selects from the journal, and what it prints."""

import pytest
from redis.asyncio import Redis

from reaper.operations.requeue import Entry, read_journal
from tests.operator.commands import Command
from tests.scripts.scene import Scene
from workers.protocol.events import encode_data
