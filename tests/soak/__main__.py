"""``python -m tests.soak``: one drill with faults, servers and chaos that only the project itself plays."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from reaper.drill.cli import show_and_perform
from reaper.drill.drill import DrillPlan
from reaper.drill.recoveries import RECOVERIES
from reaper.drill.settings import NO_OPTIONS
from tests.soak.kinds import SOAK_FORMS
from tests.soak.kit import SoakKit
from tests.soak.settings import SoakSettings
from workers.runtime.options import NEGATIVE_EXIT, errors_as_sentences, settings_options
from workers.runtime.printing import show
from workers.runtime.settings import load_settings

_FAULTS = "\n".join(f"  {form.example:<24} {form.does}" for form in SOAK_FORMS.values())
_OTHER_SERVERS = ("redis_url", "keep_keys")


@click.command(help=f"Play one drill, and account for every job.\n\n\b\nFaults:\n{_FAULTS}\n")
@click.option("--recovery", type=click.Choice(list(RECOVERIES)), default="reaper", show_default=True)
@click.option("--fault", "faults", multiple=True, metavar="KIND[:AMOUNT]@SECONDS[+SECONDS]", help="Repeatable.")
@settings_options(SoakSettings, exclude=(*NO_OPTIONS, *_OTHER_SERVERS))
@click.option("--output", "file", type=click.Path(path_type=Path), help="Write the report to this file.")
def main(recovery: str, file: Path | None, **flags: Any) -> None:
    """Play one drill; exit with 1 where it does not end as promised."""
    with errors_as_sentences():
        mode, settings = RECOVERIES[recovery], load_settings(SoakSettings, flags=flags)
        jobs = settings.jobs()
        settings = settings.with_faults(mode, jobs, given=bool(flags.get("faults")))
        again = settings.command(mode) if settings.chaos else ""
        (ending,) = show_and_perform(DrillPlan(settings, jobs, [mode], kit=SoakKit()))
        if again:
            show(f"Again: {again}", whole=True)
        if file:
            file.write_text(json.dumps({**ending.as_json(), "replay": again}, indent=2) + "\n", encoding="utf-8")
    sys.exit(NEGATIVE_EXIT if ending.objections else 0)


if __name__ == "__main__":
    main()
