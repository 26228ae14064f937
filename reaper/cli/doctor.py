"""``reaper doctor``: what is wrong with the server, the rights, the settings and the groups, or soon will be."""

from dataclasses import asdict

import click

from reaper.cli.options import connected, json_option, reaper_settings
from reaper.operations.doctor import diagnose
from reaper.operations.examination import examine
from reaper.operations.findings import Finding, Level
from reaper.settings import ReaperSettings
from workers.runtime.options import examples
from workers.runtime.printing import show, show_json, styled

FINDINGS_EXIT = 1
_COLOURS = {**dict.fromkeys(Level, "yellow"), Level.OK: "green", Level.WRONG: "red"}
_NOT_ASKED = ("health_port", "health_host", "actions_token_file")


@click.command(epilog=examples("reaper doctor --groups orders/billing", "reaper doctor --config reaper.toml --json"))
@reaper_settings([name for name in ReaperSettings.model_fields if name not in _NOT_ASKED])
@json_option
@click.option("--quiet", is_flag=True, help="Leave out what is fine.")
@click.pass_context
async def doctor(context: click.Context, /, machine: bool, quiet: bool, settings: ReaperSettings) -> None:
    """Look for what is wrong, or soon will be: server, rights, leader, settings, groups, consumers, trimming.

    Give it the service's own settings (--config), so that it can compare. Nothing is written. What our user
    may not look at is listed as unknown. Exit code 0 nothing that could be seen is wrong, 1 there are findings, 3 Redis
    cannot be reached.
    """
    async with connected(settings) as (client, server):
        findings = diagnose(await examine(client, settings, server))
    wrong = any(finding.level is Level.WRONG for finding in findings)
    shown = [finding for finding in findings if not (quiet and finding.level is Level.OK)]
    if machine:
        show_json({"status": "findings" if wrong else "ok", "findings": [asdict(finding) for finding in shown]})
    else:
        show(*map(finding_line, shown))
    context.exit(FINDINGS_EXIT if wrong else 0)


def finding_line(finding: Finding) -> str:
    """Return a finding as people read it."""
    level = styled(f"{finding.level:<8}", _COLOURS[finding.level])
    about = f"{finding.pair}: " if finding.pair else ""
    return f"{level}{finding.check:<13}{about}{finding.text}"
