"""Has Spark pickle our modules by value, so that its other processes need not have stream-reaper installed."""

from pyspark import cloudpickle

import reaper.pipeline
from workers.protocol import address, events, log_fields, messages


def ship_by_value() -> None:
    """Call this before a query with our modules is made. Another call has no effect."""
    for module in (reaper.pipeline, address, events, log_fields, messages):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
