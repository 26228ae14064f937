r"""Error signatures: what dead letters have in common that died of the same thing. Pure.

Of an error's text only what stays the same from job to job is kept: numbers, identifiers, quoted text and paths are
masked. The signature of a dead letter is made of its reason, that pattern, and where the error was raised.

The pipeline computes the same signatures on Spark, so all expressions here mean the same to Python and to Java: no
``\d``, ``\w`` or ``\s``, no named groups.
"""

import hashlib
import re

UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
NOT_IN_WORD, NO_MORE_WORD = "(?<![0-9A-Za-z_])", "(?![0-9A-Za-z_])"

MASKS = (
    (UUID, "<uuid>"),
    (f"{NOT_IN_WORD}'[^'\n]*'{NO_MORE_WORD}", "<text>"),
    ('"[^"\n]*"', "<text>"),
    ("[a-z][a-z0-9+]*://[^ \t\n]+", "<url>"),
    (f"{NOT_IN_WORD}(?:[A-Za-z]:[\\\\]|[.]{{0,2}}/)[^ \t\n:,;)\\]]+", "<path>"),
    ("0x[0-9a-fA-F]+", "<hex>"),
    (f"{NOT_IN_WORD}(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{{8,}}{NO_MORE_WORD}", "<hex>"),
    ("[0-9]+(?:[.,:_][0-9]+)*", "<n>"),
    ("[ \t\r\n]+", " "),
)
"""Expressions and what stands for what they find, in order."""
PATTERN_LENGTH = 400
"""Characters of a pattern that are kept."""
FRAME = '(?s).*File "(?:[^"\n]*[/\\\\])?([^"/\\\\\n]*)", line [0-9]+, in ([^\n]+)'
"""The innermost frame of a traceback: file and function. Its line changes with every release."""
SIGNATURE_LENGTH = 12

_COMPILED = tuple((re.compile(expression), mask) for expression, mask in MASKS)
_FRAME = re.compile(FRAME)


def pattern_of(error: str) -> str:
    """Return what stays of an error's text."""
    for expression, mask in _COMPILED:
        error = expression.sub(mask, error)
    return error[:PATTERN_LENGTH].strip(" ")


def frame_of(traceback: str) -> str:
    """Return where an error was raised, as ``file.py:function``; empty where the traceback does not tell."""
    found = _FRAME.match(traceback)
    return f"{found[1]}:{found[2]}" if found else ""


def signature_of(reason: str, error: str, traceback: str) -> str:
    """Return the signature of a dead letter, as 12 hexadecimal digits."""
    parts = "\n".join((reason, pattern_of(error), frame_of(traceback)))
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:SIGNATURE_LENGTH]
