"""``redis-stream``, which makes Redis streams a source of Spark, in batches and streaming.

``register(spark)`` makes it known. ``docs/redis-stream.md`` lists the options. It reads with ``XRANGE``, so it changes
no key. Spark ships these modules by value, so its other processes need only PySpark, redis-py and pyarrow.

`positions` finds losses, `client` waits through outages, `ranges` is the work of one task, and `source` is the
interface of Spark. A module imports only `errors`, `options` and modules before it in this list.
"""

from reaper.pipeline.redis_stream.errors import NAME, DataLossError, RedisStreamError, UnreachableError
from reaper.pipeline.redis_stream.source import register

__all__ = ["NAME", "DataLossError", "RedisStreamError", "UnreachableError", "register"]
