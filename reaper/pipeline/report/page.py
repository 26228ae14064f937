"""Writes the report as one HTML file without scripts and links to the network. Pure."""

from html import escape
from importlib.resources import files

from reaper.pipeline.report import job_sections, sections, words
from reaper.pipeline.report.findings import Findings

CONTENTS = {
    "Next steps": sections.steps,
    "Recovery": sections.recovery,
    "Over time": sections.over_time,
    "Integrity": job_sections.integrity,
    "Wait and run time": job_sections.durations,
    "Visibility timeouts": job_sections.timeouts,
    "Dead letters": job_sections.dead_letters,
    "Terms": sections.terms,
    "About": job_sections.about,
}
"""Sections, by how the head of the page names them. A section has the ID of its function."""


def write_page(findings: Findings) -> str:
    """Return the page."""
    written = "\n".join(write(findings) for write in CONTENTS.values())
    made_at, lake = (escape(str(findings.about[name])) for name in ("made_at", "lake"))
    links = "".join(f'<a href="#{write.__name__}">{escape(title)}</a>' for title, write in CONTENTS.items())
    style = (files("reaper.pipeline.report") / "style.css").read_text(encoding="utf-8")
    scope = _scope(findings)
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="stream-reaper">
<title>Recovery report: {escape(scope)}</title>
<style>
{style}</style>
</head>
<body>
<header><div>
<h1>Recovery report</h1>
<p class="muted">{escape(scope)}</p>
<nav>{links}</nav>
</div></header>
<main>
{sections.glance(findings)}
{written}
</main>
<footer>Made by <code>reaper pipeline report</code> at {made_at} from <code>{lake}</code>.</footer>
</body>
</html>
"""


def _scope(findings: Findings) -> str:
    about = findings.about
    groups = ", ".join(about["groups"]) or "all groups"
    span = (
        f"{words.instant(about['first_ms'])} to {words.instant(about['last_ms'])} UTC"
        if about["events"]
        else "no events"
    )
    return f"{groups}, {span}, {about['events']:,} events"
