"""Text of an attacker who aims at the terminal, the log or the page of a reader."""

EVIL = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\u2066\x9b31m\x85\u2028\r\nforged: healthy\x00\x7f"
"""Sets the title, clears, turns the reading order round, C1 controls, and forges a line."""
EVIL_BYTES = EVIL.encode() + b"\xed\xa0\x80\xff"
"""The same, with a lone surrogate and a byte that no UTF-8 has."""
EVIL_NAME = "ord\u202eers\x9b2J"
"""As far as a name of a stream or group may go."""


def raw_characters(printed: str) -> set[str]:
    """Return what of a print-out does more than stand there; newlines end lines."""
    return {character for character in printed if not character.isprintable()} - {"\n"}


def forged_lines(printed: str) -> list[str]:
    """Return the lines that somebody outside has begun."""
    return [line for line in printed.splitlines() if line.startswith("forged")]
