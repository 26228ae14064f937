"""Errors of ``redis-stream``, and its logger."""

import logging

NAME = "redis-stream"
LOG = logging.getLogger(NAME)


class RedisStreamError(Exception):
    """An option, the address or a stream has to be changed first. The message is a sentence."""


class DataLossError(RedisStreamError):
    """Entries were removed before they were read."""


class UnreachableError(RedisStreamError):
    """Redis was out of reach for longer than ``retrySeconds``."""
