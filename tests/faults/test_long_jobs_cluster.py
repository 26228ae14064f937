"""A cluster, with jobs that last longer than the visibility timeout: no live worker loses one to recovery.

Here, too, a dead worker holds jobs of the same group, which have to run again.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from tests.faults import scene
from tests.faults.deliveries import read_long_ago
from tests.support.cluster import Cluster, started_cluster
from tests.support.patience import scaled
from tests.support.tiers import in_matrix
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client
from workers.protocol.events import LifecycleEvent
from workers.protocol.keys import GroupKeys, group_keys

pytestmark = pytest.mark.anyio

VISIBILITY_S = 3.0
LIVE, STRANDED = 8, 3
REAPER, EMBEDDED = "reaper", "embedded"
RECOVERIES = pytest.mark.parametrize("recovery", [REAPER, in_matrix(EMBEDDED)])
