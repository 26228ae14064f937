"""``redis-stream``: Redis streams as a source of Spark, in batches and streaming.

``register(spark)`` makes it known; ``docs/redis-stream.md`` lists the options. It reads with ``XRANGE``, so nothing on
the server changes. Spark ships these modules by value: its other processes need PySpark, redis-py and pyarrow.

Each module imports only the ones before it: `errors`, `options` and `positions` (IDs, and losses; pure), `client` (a
client of redis-py that outlives outages), `ranges` (the part of one task), `source` (the interface of Spark).
"""

from reaper.pipeline.redis_stream.errors import NAME, DataLossError, RedisStreamError, UnreachableError
from reaper.pipeline.redis_stream.source import register

__all__ = ["NAME", "DataLossError", "RedisStreamError", "UnreachableError", "register"]
