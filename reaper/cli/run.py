"""``reaper run``: one replica."""

from pathlib import Path
from typing import Any

import click

from reaper.settings import ReaperSettings, check_groups
from workers.runtime.event_loop import run_in_loop
from workers.runtime.logs import log_to_stderr
from workers.runtime.options import errors_as_sentences, help_end, log_options, settings_options
from workers.runtime.settings import load_settings
from workers.telemetry.setup import exported


@click.command(
    epilog=help_end(
        "reaper run --groups orders/billing",
        "reaper run --config reaper.toml --health-port 8080",
        ok="stopped by SIGTERM or SIGINT",
    )
)
@settings_options(ReaperSettings)
@log_options
def run(config: Path | None, log_level: str, log_format: str, **flags: Any) -> None:
    """Run one replica. The replicas of a namespace share the groups.

    On SIGTERM or SIGINT, it hands its groups over to other replicas and stops.
    """
    log_to_stderr(log_level, log_format)
    with errors_as_sentences():
        from reaper.process import serve  # the other commands do not need the service

        settings = check_groups(load_settings(ReaperSettings, flags=flags, file=config))
        with exported("reaper", shows_metrics=settings.health_port is not None):
            run_in_loop(serve, settings)
