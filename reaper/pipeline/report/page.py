"""Writes the report as one HTML file that needs nothing else: no network, no script. Pure."""

import json
from html import escape
from importlib.resources import files
from itertools import accumulate, takewhile

from reaper.pipeline.analysis.answers import Rows
from reaper.pipeline.report import job_sections, sections, words
from reaper.pipeline.report.findings import Findings

EMBEDDED_BYTES = 15_000
"""How much of each table the page embeds as JSON: the page stays small, the JSON file has all."""

CONTENTS = {
    "Next steps": sections.steps,
    "Recovery": sections.recovery,
    "Over time": sections.over_time,
    "Integrity": job_sections.integrity,
    "Wait and run time": job_sections.durations,
    "Visibility timeouts": job_sections.timeouts,
    "Dead letters": job_sections.dead_letters,
    "Leadership": sections.leadership,
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
    advised = findings.advice.get("groups", [])
    all_rows = {**findings.tables, "advice": advised, "lost": (findings.live or {}).get("lost", [])}
    kept = {name: _first_of(rows, EMBEDDED_BYTES) for name, rows in all_rows.items()}
    document["rows_left_out"] = {name: n for name, rows in all_rows.items() if (n := len(rows) - len(kept[name]))}
    document["advice"] = {**findings.advice, "groups": kept.pop("advice")}
    lost = kept.pop("lost")
    document |= {"tables": kept, "live": findings.live and {**findings.live, "lost": lost}}
    # In a script element, only "</" and "<!" could end it or change how it is read.
    return _compact(document).replace("<", "\\u003c")


def _first_of(rows: Rows, most_bytes: int) -> Rows:
    """Return as many rows as ``most_bytes`` hold."""
    sizes = accumulate(len(_compact(row)) for row in rows)
    return [row for row, _ in takewhile(lambda pair: pair[1] <= most_bytes, zip(rows, sizes, strict=True))]


def _compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), default=str)
