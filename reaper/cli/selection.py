"""What the dead-letter commands share: options, and reading of rates and ages."""

import re

import click

from workers.protocol.errors import ConfigurationError

_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

ids_argument = click.argument("ids", nargs=-1, metavar="[ID]…")
reason_option = click.option("--reason", metavar="REASON", help="Only those given up for this reason.")
all_option = click.option("--all", "everything", is_flag=True, help="All that are there now.")


def read_rate(value: str | None) -> float | None:
    """Read ``50`` or ``50/s``. Raises click's BadParameter."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/s)?", value)
    if not found or not float(found[1]):
        raise click.BadParameter(f"{value!r} is no rate: write for example 50/s.")
    return float(found[1])


def read_age_ms(value: str, option: str = "--older-than") -> int:
    """Read ``90``, ``15m``, ``12h`` or ``30d`` as milliseconds. Raises ConfigurationError."""
    found = re.fullmatch(r"(\d+)([smhd]?)", value)
    if not found:
        raise ConfigurationError(f"{option} {value!r} is no age: write for example 90, 15m, 12h or 30d.")
    return int(found[1]) * _UNIT_S[found[2]] * 1000
