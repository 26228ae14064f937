"""Errors that callers can act on. Each has one cause.

Outcomes are return values and not errors, for example a lost lease or a rejected settlement.
"""


class StreamReaperError(Exception):
    """Base of all errors that stream-reaper raises on purpose. Each argument is a sentence for people."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class ConfigurationError(StreamReaperError):
    """A setting, a key name or a combination is invalid. The message names it and the fix."""


class NotPossibleError(ConfigurationError):
    """The request is valid, and Redis's state rejects it: the group or job does not exist or is in use."""


class UnreachableError(StreamReaperError):
    """Redis does not answer, or rejects the login. The message names the address without the password."""


class UnsupportedServerError(StreamReaperError):
    """The server lacks a required feature, for example because it is older than Redis 6.2."""


class InvalidJobError(StreamReaperError):
    """A job is invalid, and was not sent. The message contains the fix."""


class InvalidFieldError(StreamReaperError):
    """A field of a job is missing or has another format. The message names the field and the job."""


class HandlerExitError(StreamReaperError):
    """A handler or a callback raised SystemExit or KeyboardInterrupt, so the worker has ended."""


class UnexpectedReplyError(StreamReaperError):
    """Redis sent a reply that no supported server sends."""
