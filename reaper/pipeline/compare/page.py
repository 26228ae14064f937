"""Writes a comparison as one HTML page that needs no other file. Pure."""

import json
from html import escape
from importlib.resources import files

from reaper.pipeline.compare.chart import waits
from reaper.pipeline.compare.figures import FIGURES, Figure, Table
from reaper.pipeline.compare.findings import Comparison, ScenarioFindings
from reaper.pipeline.compare.verdict import write_all
from reaper.pipeline.report import html, words
from reaper.pipeline.report.html import Markup

NOTHING = words.NOTHING


def _figures(table: Table) -> list[Figure]:
    return [figure for figure in FIGURES if figure.name in table]


def _cell(table: Table, figure: Figure, mode: str) -> str:
    measured = table[figure.name].get(mode)
    return NOTHING if measured is None else write_all(figure, measured)


def _about(comparison: Comparison) -> str:
    about = comparison.about
    turns = (
        f"{about['repeat']} turns (the median and the span, and the sum of broken promises)"
        if about["repeat"] > 1
        else "one turn"
    )
    faster = f", {about['speedup']:g} times as fast" if about["speedup"] != 1 else ""
    options = f" ({' '.join(about['options'])})" if about["options"] else ""
    return (
        f"Trace: {about['trace']}{faster}, up to {about['jobs']:,} jobs a drill, seed {about['seed']}{options}; "
        f"{turns}; {about['server']}; {about['made_at']}."
    )


def write_page(comparison: Comparison) -> str:
    """Return the page."""
    style = (files("reaper.pipeline.report") / "style.css").read_text(encoding="utf-8")
    sections = "\n".join(_section(found) for found in comparison.found)
    links = "".join(f'<a href="#{one.scenario.name}">{escape(one.scenario.name)}</a>' for one in comparison.found)
    summary = "".join(f"<li>{escape(line)}</li>" for line in comparison.overall)
    embedded = json.dumps(comparison.as_json(), separators=(",", ":")).replace("<", "\\u003c")
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="stream-reaper">
<title>Recovery modes compared</title>
<style>
{style}</style>
</head>
<body>
<header><div>
<h1>Recovery modes compared</h1>
<p class="muted">{escape(_about(comparison))}</p>
<nav>{links}</nav>
</div></header>
<main>
<section><h2>What the numbers say</h2>
<ul>{summary}</ul>
{waits(comparison.found, comparison.modes)}
</section>
{sections}
</main>
<footer>Made by <code>reaper compare</code>. The figures are embedded as JSON.</footer>
<script type="application/json" id="comparison">{embedded}</script>
</body>
</html>
"""


def _section(found: ScenarioFindings) -> Markup:
    scenario = found.scenario
    rows = [
        {"figure": figure.title, **{mode: _cell(found.table, figure, mode) for mode in found.modes}}
        for figure in _figures(found.table)
    ]
    columns = [html.text("", lambda row: str(row["figure"]))]
    columns += [html.number(mode, lambda row, mode=mode: str(row[mode])) for mode in found.modes]  # type: ignore[misc]
    remarks = [html.paragraph(remark) for remark in found.remarks]
    verdict = [html.paragraph(sentence) for sentence in found.verdict.sentences]
    return html.section(
        scenario.name,
        scenario.title,
        [
            html.code("reaper drill " + " ".join(scenario.words)),
            html.heading(found.headline),
            *verdict,
            Markup(f'<div class="figures">{html.table(columns, rows)}</div>'),
            *remarks,
        ],
    )
