"""What the dead-letter commands share: reading of IDs, filters, rates and ages."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from reaper.operations.dead_letters import Selection, check_ids
from reaper.operations.signatures import SIGNATURE_LENGTH
from workers.protocol.errors import ConfigurationError

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

ids_argument = click.argument("ids", nargs=-1, metavar="[ID]…")
all_option = click.option("--all", "everything", is_flag=True, help="All that are there now.")


def filter_options(command: CommandT) -> CommandT:
    """Add ``--reason`` and ``--signature``."""
    command = click.option(
        "--signature",
        metavar="SIGNATURE",
        help="Only those with this error signature (`list --json` and `reaper pipeline report` tell them).",
    )(command)
    return click.option("--reason", metavar="REASON", help="Only those given up for this reason.")(command)


def read_selection(
    ids: Sequence[str], *, reason: str | None, signature: str | None, everything: bool, has_age: bool = False
) -> Selection:
    """Return what IDs and filters select. Raises ConfigurationError where they say nothing, or two things."""
    ways = [bool(ids), reason is not None or signature is not None or has_age, everything]
    if sum(ways) != 1:
        given = "Nothing is selected" if not any(ways) else "IDs, filters and --all exclude each other"
        raise ConfigurationError(f"{given}: name IDs, or a filter such as --reason max_deliveries, or --all.")
    return Selection(ids=check_ids(ids), reason=reason, signature=_check_signature(signature))


def _check_signature(signature: str | None) -> str | None:
    if signature is not None and not re.fullmatch(f"[0-9a-f]{{{SIGNATURE_LENGTH}}}", signature):
        raise ConfigurationError(
            f"{signature!r} is no error signature: it has {SIGNATURE_LENGTH} digits, such as 0f3a91c27b5d."
        )
    return signature


def read_rate(value: str | None) -> float | None:
    """Read ``50`` or ``50/s``. Raises click's BadParameter."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/s)?", value)
    if not found or not float(found[1]):
        raise click.BadParameter(f"{value!r} is no rate: write for example 50/s.")
    return float(found[1])


def read_age_ms(value: str) -> int:
    """Read ``90``, ``15m``, ``12h`` or ``30d`` as milliseconds. Raises ConfigurationError."""
    found = re.fullmatch(r"(\d+)([smhd]?)", value)
    if not found:
        raise ConfigurationError(f"--older-than {value!r} is no age: write for example 90, 15m, 12h or 30d.")
    return int(found[1]) * _UNIT_S[found[2]] * 1000
