"""Writes the report as one HTML file that needs nothing else: no network, no script. Pure."""

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from reaper.pipeline.report import sections, words
from reaper.pipeline.report.findings import Findings

EMBEDDED_ROWS = 400
"""Rows of a table that the page embeds as JSON: the page stays small, the JSON file has all."""

CONTENTS = {
    "recovery": "Recovery",
    "integrity": "Integrity",
    "durations": "Wait and run time",
    "stalls": "Stalls",
    "leadership": "Leadership",
    "about": "About",
}


def write_page(findings: Findings) -> str:
    """Return the page."""
    written = "\n".join(getattr(sections, name)(findings) for name in CONTENTS)
    made_at, lake = (escape(str(findings.about[name])) for name in ("made_at", "lake"))
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in CONTENTS.items())
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
<footer>Made by <code>reaper pipeline report</code> at {made_at} from <code>{lake}</code>. The figures are embedded as \
JSON.</footer>
<script type="application/json" id="findings">{_embedded(findings)}</script>
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


def _embedded(findings: Findings) -> str:
    document = findings.as_json()
    tables: Mapping[str, list[Any]] = document["tables"]
    cut = {name: len(rows) for name, rows in tables.items() if len(rows) > EMBEDDED_ROWS}
    document |= {"tables": {name: rows[:EMBEDDED_ROWS] for name, rows in tables.items()}, "rows_of_cut_tables": cut}
    # In a script element, only "</" and "<!" could end it or change how it is read.
    return json.dumps(document, separators=(",", ":"), default=str).replace("<", "\\u003c")
