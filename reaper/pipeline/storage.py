"""Errors of file systems, object stores and deltalake, as one sentence."""

import re

from workers.protocol.errors import ConfigurationError

_OF_A_STORE = frozenset({"OSError", "DeltaError", "ArrowException"})
"""Names of error classes, so that they need not be imported."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r"^\s*0: ", re.MULTILINE)
_ANSWER = re.compile(r"<Code>([^<]+)</Code>.*?<Message>([^<]+)</Message>", re.DOTALL)
"""The answer of an object store that rejects a call."""
_LONGEST = 300


class LakeError(ConfigurationError):
    """The lake cannot be read or written. The message has the reason."""

    @classmethod
    def of(cls, lake: str, error: BaseException) -> "LakeError":
        """Return the sentence for ``error``. ``lake`` is the setting, or empty."""
        named = f"the lake {lake}" if lake else "the lake"
        advice = " Check AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        said = f"{named} cannot be read or written: {reason_of_store(error).rstrip('.')}."
        return cls(said + (advice if "://" in lake else ""))


def is_of_store(error: BaseException) -> bool:
    """Tell whether an error is about the storage of a lake, or about its files."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not isinstance(error, BrokenPipeError) and bool(names & _OF_A_STORE)


def reason_of_store(error: BaseException) -> str:
    """Return the first and the last line of an error, which are the failure and its cause.

    deltalake draws a tree over many lines, in colors, and adds its stack where RUST_BACKTRACE is set.
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    said = _COLOR.sub("", _FRAME.split(str(error), maxsplit=1)[0])
    if answer := _ANSWER.search(said):
        return ": ".join(answer.groups())
    lines = [line for line in (" ".join(part.split()).strip(" ↳") for part in said.splitlines()) if line]
    told = ": ".join(dict.fromkeys([lines[0], lines[-1]])) if lines else type(error).__name__
    return told if len(told) <= _LONGEST else told[:_LONGEST] + "…"
