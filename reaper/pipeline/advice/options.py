"""What ``reaper pipeline advise`` may be told: what things are worth, and how the workers keep what they hold."""

from collections.abc import Callable
from typing import Any

import click

from reaper.pipeline.advice.model import Weights, Workers
from workers.protocol.messages import MAX_DELIVERIES_LIMIT
from workers.runtime.options import Amount
from workers.runtime.output_files import output_file

_DEFAULT = Weights()
_AUTO = "auto"

_OPTIONS = (
    click.option("--group", "pair", metavar="GROUP", help="Advise on this group alone: group, or stream/group."),
    click.option(
        "--workers",
        type=click.Choice([_AUTO, *(str(kind) for kind in Workers)]),
        default=_AUTO,
        show_default=True,
        help="How workers keep what they hold: ours extend it, bare ones must be done within the visibility timeout. "
        "auto: as the journal tells.",
    ),
    click.option(
        "--rerun-weight",
        type=Amount(min=0),
        default=_DEFAULT.rerun,
        show_default=True,
        help="Seconds of waiting that a second of work done twice is worth.",
    ),
    click.option(
        "--dead-letter-weight",
        type=Amount(min=0),
        default=_DEFAULT.dead_letter_s,
        show_default=True,
        help="Seconds of waiting that a job is worth that is given up though its work was done.",
    ),
    click.option(
        "--request-weight",
        type=Amount(min=0),
        default=_DEFAULT.request_s,
        show_default=True,
        help="Seconds of waiting that one extension is worth.",
    ),
    click.option(
        "--pause",
        type=Amount(min=0.01),
        default=_DEFAULT.pause_ms / 1000,
        show_default=True,
        metavar="SECONDS",
        help="How long a worker that extends may be silent (paused, blocked, cut off) and lose nothing.",
    ),
    click.option(
        "--headroom",
        type=Amount(min=1),
        default=_DEFAULT.headroom,
        show_default=True,
        help="How many times as long tomorrow's slow jobs may take.",
    ),
    click.option(
        "--max-deliveries",
        type=click.IntRange(min=1, max=MAX_DELIVERIES_LIMIT),
        default=_DEFAULT.max_deliveries,
        show_default=True,
        help="Deliveries that a job has.",
    ),
    output_file("--output", metavar="FILE", help="Write the settings to this file instead of printing them."),
)


def advice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the advisor; `read_weights` and `read_workers` read them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_weights(given: dict[str, Any]) -> Weights:
    """Take the options of the weights out of ``given``."""
    return Weights(
        rerun=given.pop("rerun_weight"),
        dead_letter_s=given.pop("dead_letter_weight"),
        request_s=given.pop("request_weight"),
        pause_ms=round(given.pop("pause") * 1000),
        headroom=given.pop("headroom"),
        max_deliveries=given.pop("max_deliveries"),
    )


def read_workers(given: dict[str, Any]) -> Workers | None:
    """Take the option of the workers out of ``given``; None = as the journal tells."""
    name = given.pop("workers")
    return None if name == _AUTO else Workers(name)
