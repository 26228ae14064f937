"""Errors that callers can act on: few, flat, one cause each.

Outcomes are not errors: "not leader any more" or "settlement refused" are return values.
"""


class StreamReaperError(Exception):
    """Base of every error this distribution raises on purpose. The message is for people: a sentence an argument.

    As text they stand on a line each. Whoever prints them takes the arguments: what they quote may hold newlines.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class ConfigurationError(StreamReaperError):
    """A setting, key name or combination cannot work. The message names it and what to write instead."""


class UnreachableError(StreamReaperError):
    """Redis cannot be reached or refuses us. The message names the address (never the password)."""


class UnsupportedServerError(StreamReaperError):
    """The server lacks something we need (Redis below 6.2, for example)."""


class NotReplicatedError(StreamReaperError):
    """Jobs are enqueued, and too few replicas have said in time that they have them. Nothing was taken back."""


class InvalidJobError(StreamReaperError):
    """A job cannot be enqueued as it is; nothing was sent. The message says what to change."""


class InvalidFieldError(StreamReaperError):
    """A field of a job is not there, or is not what its handler reads it as. The message names field and job."""


class HandlerExitError(StreamReaperError):
    """A handler or a callback of the program raised SystemExit or KeyboardInterrupt, so the worker has ended."""


class UnexpectedReplyError(StreamReaperError):
    """Redis answered something that no supported server answers."""
