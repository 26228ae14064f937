"""What a user of ``redis-stream`` is told, and in whose name."""

import logging

NAME = "redis-stream"
LOG = logging.getLogger(NAME)


class RedisStreamError(Exception):
    """What a user can do something about: an option, a schema, a stream. The message is a sentence."""


class DataLossError(RedisStreamError):
    """Entries that were never read are gone."""


class UnreachableError(RedisStreamError):
    """No contact with Redis for longer than ``retrySeconds``."""
