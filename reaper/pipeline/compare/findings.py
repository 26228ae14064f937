"""The results of a comparison as plain values, from which the page and the JSON are made. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reaper.pipeline.compare.figures import FIGURES, Table, measure
from reaper.pipeline.compare.play import Drills, Plan, PlayedDrill
from reaper.pipeline.compare.scenarios import Scenario
from reaper.pipeline.compare.verdict import Verdict, headline, judge

VERSION = 1


@dataclass(frozen=True, slots=True)
class ScenarioFindings:
    """One scenario."""

    scenario: Scenario
    table: Table
    verdict: Verdict
    remarks: tuple[str, ...]
    """Faults that were left out, and broken promises."""

    @property
    def modes(self) -> list[str]:
        """The modes that it was played with, in the order of the drills."""
        return list(dict.fromkeys(mode for row in self.table.values() for mode in row))

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        return headline(self.verdict, self.modes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A whole comparison."""

    about: Mapping[str, Any]
    modes: Sequence[str]
    found: Sequence[ScenarioFindings]
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


def _scenario(found: ScenarioFindings) -> dict[str, Any]:
    scenario = found.scenario
    return {
        "name": scenario.name,
        "title": scenario.title,
        "drill": scenario.words,
        "figures": {
            name: {mode: asdict(measured) for mode, measured in row.items()} for name, row in found.table.items()
        },
        "headline": found.headline,
        "verdict": asdict(found.verdict),
        "remarks": list(found.remarks),
    }


def conclude(drills: Drills, made_at: str) -> Comparison:
    """Measure and judge every scenario."""
    plan, played, found = drills.plan, drills.played, []
    for scenario in plan.scenarios:
        here = [one for one in played if one.scenario == scenario.name]
        table = measure(here, scenario.name)
        remarks = tuple(dict.fromkeys(_remarks(here)))
        found.append(ScenarioFindings(scenario, table, judge(table, plan.modes, restarts=scenario.restarts), remarks))
    lines = [f"{one.scenario.title}: {one.headline}." for one in found]
    return Comparison(_about(plan, played, made_at), plan.modes, found, [*lines, *drills.left_out])


def _about(plan: Plan, played: Sequence[PlayedDrill], made_at: str) -> dict[str, Any]:
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


def _remarks(played: Sequence[PlayedDrill]) -> list[str]:
    remarks = []
    for one in played:
        for left_out in one.report["left_out"]:
            instead = f", {left_out['played']} was played instead" if left_out["played"] else ""
            remarks.append(f"{one.mode}: {left_out['asked']} was left out ({left_out['why']}){instead}.")
        remarks += [f"{one.mode}: {objection}." for objection in one.report["objections"]]
    return remarks
