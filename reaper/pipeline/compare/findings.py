"""Everything a comparison has found, as plain values: what the page, the Markdown and the JSON are made of. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reaper.drill.executions import Cause
from reaper.pipeline.compare.figures import FIGURES, Table, measure
from reaper.pipeline.compare.play import Drills, Plan, Played
from reaper.pipeline.compare.scenarios import Scenario
from reaper.pipeline.compare.verdict import Verdict, judge, overall

VERSION = 1
Told = Mapping[tuple[str, str, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Found:
    """One scenario."""

    scenario: Scenario
    table: Table
    verdict: Verdict
    remarks: tuple[str, ...]
    """What was left out, and what did not go as promised."""
    journals: Mapping[str, Sequence[Mapping[str, Any]]]
    """What the journals tell, by mode, one for each turn."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A whole comparison."""

    about: Mapping[str, Any]
    modes: Sequence[str]
    found: Sequence[Found]
    overall: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "version": VERSION,
            "about": dict(self.about),
            "modes": list(self.modes),
            "overall": list(self.overall),
            "figures": {
                figure.name: {"title": figure.title, "unit": figure.unit, "less_is_better": figure.less_is_better}
                for figure in FIGURES
            },
            "scenarios": [_scenario(found) for found in self.found],
        }


def _scenario(found: Found) -> dict[str, Any]:
    scenario = found.scenario
    return {
        "name": scenario.name,
        "title": scenario.title,
        "drill": scenario.words,
        "figures": {
            name: {mode: asdict(measured) for mode, measured in row.items()} for name, row in found.table.items()
        },
        "verdict": asdict(found.verdict),
        "remarks": list(found.remarks),
        "journals": {mode: [dict(told) for told in turns] for mode, turns in found.journals.items()},
    }


def conclude(drills: Drills, told: Told, made_at: str) -> Comparison:
    """Measure and judge every scenario."""
    plan, played, found = drills.plan, drills.played, []
    for scenario in plan.scenarios:
        table = measure(played, scenario.name)
        here = [one for one in played if one.scenario == scenario.name]
        journals = {
            mode: [told[key] for key in sorted(told) if key[:2] == (scenario.name, mode)] for mode in plan.modes
        }
        found.append(
            Found(
                scenario,
                table,
                judge(table, plan.modes, restarts=scenario.restarts),
                tuple(dict.fromkeys((*_remarks(here), *_second_opinions(here, told)))),
                {mode: turns for mode, turns in journals.items() if turns},
            )
        )
    verdicts = {one.scenario.name: one.verdict for one in found}
    titles = {scenario.name: scenario.title for scenario in plan.scenarios}
    lines = [*overall(verdicts, titles, plan.modes), *drills.left_out]
    return Comparison(_about(plan, played, made_at), plan.modes, found, lines)


_WAITED = " (to the journal, what waited in a worker that died was started there)"


def _second_opinions(played: Sequence[Played], told: Told) -> list[str]:
    """Say where the journal of a drill tells of more or less than its ledger."""
    remarks = []
    for one in played:
        journal = told.get((one.scenario, one.mode, one.turn))
        if journal is None:
            continue
        report = one.report
        # What a killed worker had done and not settled, only its handler knew.
        twice = [each for each in report["duplicates"] if each["cause"] != Cause.WORKER_KILLED]
        opinions = (
            ("completed twice", journal["duplicates"], len(twice), ""),
            ("started again", journal["second_starts"], len(report["second_starts"]), _WAITED),
        )
        remarks += [
            f"{one.mode}, turn {one.turn + 1}: the journal tells of {there:,} jobs {what}, the ledger of {here:,}{why}."
            for what, there, here, why in opinions
            if there != here
        ]
    return remarks


def _about(plan: Plan, played: Sequence[Played], made_at: str) -> dict[str, Any]:
    settings = played[0].report["settings"]
    return {
        "made_at": made_at,
        "options": plan.shown_options,
        "repeat": plan.repeat,
        "trace": settings["trace"],
        "speedup": settings["speedup"],
        "seed": settings["seed"],
        "jobs": max(one.report["enqueued"] for one in played),
        "server": played[0].report["server"],
    }


def _remarks(played: Sequence[Played]) -> list[str]:
    remarks = []
    for one in played:
        for left_out in one.report["left_out"]:
            instead = f", {left_out['played']} was played instead" if left_out["played"] else ""
            remarks.append(f"{one.mode}: {left_out['asked']} was left out ({left_out['why']}){instead}.")
        remarks += [f"{one.mode}: {objection}." for objection in one.report["objections"]]
    return remarks
