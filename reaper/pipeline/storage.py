"""What file systems, object stores and deltalake say where a lake cannot be read or written: one sentence of it."""

import re

from workers.protocol.errors import ConfigurationError

_OF_A_STORE = frozenset({"OSError", "DeltaError", "ArrowException"})
"""Classes, by name: whoever asks need not have imported what raises them."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r"^\s*0: ", re.MULTILINE)
_ANSWER = re.compile(r"<Code>([^<]+)</Code>.*?<Message>([^<]+)</Message>", re.DOTALL)
"""Of an object store that refuses."""
_LONGEST = 300


_OF_AN_ADDRESS = (
    " Address and credentials of an object store are AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY."
)


class LakeError(ConfigurationError):
    """The lake cannot be read or written. The message says why."""

    @classmethod
    def of(cls, lake: str, error: BaseException) -> "LakeError":
        """Tell of ``error``, which names nothing itself where it is deltalake's; ``lake`` is the setting, if known."""
        named = f"the lake {lake}" if lake else "the lake"
        advice = _OF_AN_ADDRESS if "://" in lake else ""
        return cls(f"{named} cannot be read or written: {reason_of_store(error)}.{advice}".replace("..", "."))


def is_of_store(error: BaseException) -> bool:
    """Tell whether an error is of what a lake lies in, or of what is written there."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not isinstance(error, BrokenPipeError) and bool(names & _OF_A_STORE)


def reason_of_store(error: BaseException) -> str:
    """Return what failed and what it came from, on one line.

    deltalake draws a tree over many lines, in colours, and adds the frames of its stack where RUST_BACKTRACE is set.
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    said = _COLOUR.sub("", _FRAME.split(str(error), maxsplit=1)[0])
    if answer := _ANSWER.search(said):
        return ": ".join(answer.groups())
    lines = [line for line in (" ".join(part.split()).strip(" ↳") for part in said.splitlines()) if line]
    ends = dict.fromkeys([lines[0], lines[-1]]) if lines else [type(error).__name__]
    told = ": ".join(ends)
    return told if len(told) <= _LONGEST else told[:_LONGEST] + "…"
