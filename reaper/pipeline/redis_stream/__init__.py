"""``redis-stream``: Redis streams as a source and a sink of Spark, in batches and streaming. Useful by itself.

``register(spark)`` makes it known; ``docs/redis-stream.md`` lists the options. It needs nothing but PySpark, redis-py
and pyarrow, and how an address is read (`workers.protocol.address`, `nodes` and `slots`, which need nothing): Spark
ships them by value, so that executors and Spark Connect servers need not have them.

It reads with ``XRANGE`` and nothing else; nothing on the server changes. Each module imports only those before it:
`errors`, `shipping` (how all of this gets to Spark's Pythons), `bounds` (where to begin and to end), `options`,
`positions` (IDs, and what was lost behind one), `connecting`, `link` (a connection that outlives outages), `cluster`
(the same to many nodes), `ranges` (what a task reads), `columns` (entries as Arrow), `writing`, `source` (what Spark
calls).
"""

from reaper.pipeline.redis_stream.errors import NAME, DataLossError, RedisStreamError, UnreachableError
from reaper.pipeline.redis_stream.source import register

__all__ = ["NAME", "DataLossError", "RedisStreamError", "UnreachableError", "register"]
