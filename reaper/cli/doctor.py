"""``reaper doctor``: checks of the server, the settings and the groups."""

from dataclasses import asdict

import click

from reaper.cli.options import connected, json_option, reaper_settings, show_result
from reaper.operations.doctor import diagnose
from reaper.operations.judgement import Finding, Level
from reaper.settings import ReaperSettings
from workers.runtime.options import help_end
from workers.runtime.printing import styled

_COLOURS = {**dict.fromkeys(Level, "yellow"), Level.OK: "green", Level.WRONG: "red"}


@click.command(
    epilog=help_end(
        "reaper doctor --groups orders/billing",
        "reaper doctor --config reaper.toml -o json",
        ok="no check failed",
        no="at least one check failed",
    )
)
@reaper_settings(("redis_url", "namespace", "groups", "redelivery"))
@json_option
async def doctor(machine: bool, settings: ReaperSettings) -> bool:
    """Check the server, settings and groups.

    Pass the settings file of the replicas with --config, so that their groups and policies are checked. The command
    writes no key.
    """
    async with connected(settings) as (client, server):
        findings = await diagnose(client, settings, server)
    wrong = any(finding.level is Level.WRONG for finding in findings)
    document = {"status": "findings" if wrong else "ok", "findings": [asdict(finding) for finding in findings]}
    show_result(document, *map(finding_line, findings), machine=machine)
    return not wrong


def finding_line(finding: Finding) -> str:
    """Return a finding as people read it."""
    level = styled(f"{finding.level:<8}", _COLOURS[finding.level])
    about = f"{finding.group}: " if finding.group else ""
    return f"{level}{finding.check:<13}{about}{finding.text}"
