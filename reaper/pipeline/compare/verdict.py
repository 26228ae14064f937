"""Decides from the figures of a scenario which modes are best. Pure.

Figures are compared in the order of `figures.FIGURES`, first the broken promises, then the waiting times of jobs. Each
removes the modes that are worse than another remaining one. The cost decides only among the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reaper.pipeline.compare.figures import COUNTS_OF_JOBS, FIGURES, Figure, Kind, Measured, Table

_HARMS = frozenset(figure.name for figure in FIGURES if figure.kind is Kind.SAFETY)
RELATIVE = 0.1
"""Differences up to a tenth are no difference."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one scenario."""

    best: tuple[str, ...]
    """The modes that no other one beats in safety and speed."""
    cheapest: tuple[str, ...]
    """The best modes that no other one of them beats in cost."""
    sentences: tuple[str, ...]
    """The figures that decided, and the advantages of the other modes."""
    had_faults: bool = True
    """The scenario had faults. Without faults, only the cost can be compared."""
    untested: tuple[str, ...] = ()
    """The modes in which no job started again although the scenario is about that. Then there is no other verdict."""


def judge(table: Table, modes: Sequence[str], *, restarts: bool = False) -> Verdict:
    """Judge the modes of a scenario by its figures. ``restarts`` means that jobs have to start again in every turn."""
    modes = [mode for mode in modes if any(mode in row for row in table.values())]
    untested = tuple(mode for mode in modes if restarts and not _was_hit(table, mode))
    if untested:
        return Verdict((), (), (_untested(untested),), untested=untested)
    best, reasons = _sieve(table, modes, (Kind.SAFETY, Kind.SPEED))
    cheapest, costs = _sieve(table, best, (Kind.COST,))
    others = [sentence for mode in modes for sentence in _in_favour(table, mode, best)]
    had_faults = any(figure.kind in (Kind.SAFETY, Kind.SPEED) and figure.name in table for figure in FIGURES)
    return Verdict(tuple(best), tuple(cheapest), (*reasons, *_forgiven(table, best), *costs, *others), had_faults)


def _was_hit(table: Table, mode: str) -> bool:
    """Return whether the faults interrupted or harmed a job in every turn."""
    harmed = [row[mode].value for name, row in table.items() if name in _HARMS and mode in row]
    restarted = table.get("second_starts", {}).get(mode)
    return any(harmed) or (restarted is not None and restarted.low > 0)


def _untested(modes: Sequence[str]) -> str:
    return (
        f"No job started again with {' and '.join(modes)} in at least one turn, so the scenario did not test recovery. "
        "Play it with a longer trace, or with --fault-at at a moment when jobs are in flight."
    )


def _sieve(table: Table, modes: Sequence[str], kinds: Sequence[Kind]) -> tuple[list[str], list[str]]:
    """Return the modes that are left, and a sentence for each figure that took some out."""
    left, sentences = list(modes), []
    for figure in FIGURES:
        if figure.kind not in kinds or figure.name not in table:
            continue
        row = {mode: table[figure.name][mode] for mode in left if mode in table[figure.name]}
        winners = _winners(figure, row)
        if beaten := [mode for mode in row if mode not in winners]:
            sentences.append(_sentence(figure, row, winners, beaten))
            left = [mode for mode in left if mode not in beaten]
    return left, sentences


def _forgiven(table: Table, best: Sequence[str]) -> Iterable[str]:
    """Name the broken promises that are so rare among the best modes that they may be chance."""
    for figure in FIGURES:
        row = {mode: table[figure.name][mode] for mode in best if mode in table.get(figure.name, {})}
        if figure.kind is Kind.SAFETY and any(row[mode].value > min(row.values(), key=_value).value for mode in row):
            yield f"Too few to tell them apart, {figure.title}: {_listed(figure, row, row)}."


def _value(measured: Measured) -> float:
    return measured.value


def _winners(figure: Figure, row: Mapping[str, Measured]) -> tuple[str, ...]:
    """Return the modes that no other one beats."""
    return tuple(mode for mode, here in row.items() if not any(_beats(figure, other, here) for other in row.values()))


def _beats(figure: Figure, one: Measured, other: Measured) -> bool:
    """Return whether ``one`` is better by more than chance, a tenth, and the smallest relevant difference."""
    better_by = (other.value - one.value) if figure.less_is_better else (one.value - other.value)
    if figure.name in COUNTS_OF_JOBS:
        return better_by > figure.least
    apart = one.high < other.low if figure.less_is_better else one.low > other.high
    return apart and better_by > max(figure.least, RELATIVE * max(abs(one.value), abs(other.value)))


def _sentence(figure: Figure, row: Mapping[str, Measured], winners: Iterable[str], beaten: Iterable[str]) -> str:
    title = figure.title[0].upper() + figure.title[1:]
    return f"{title}: {_listed(figure, row, winners)}, against {_listed(figure, row, beaten)}."


def _listed(figure: Figure, row: Mapping[str, Measured], modes: Iterable[str]) -> str:
    return " and ".join(f"{mode} {write_all(figure, row[mode])}" for mode in modes)


def _in_favour(table: Table, mode: str, best: Sequence[str]) -> Iterable[str]:
    """Name the figures in which another mode beats all the best ones. A mode that loses jobs has none."""
    lost = table.get("lost", {}).get(mode)
    if mode in best or (lost and lost.value > 0):
        return
    for figure in (figure for figure in FIGURES if figure.kind):
        row = table.get(figure.name, {})
        rivals = [other for other in best if other in row]
        if mode in row and rivals and all(_beats(figure, row[mode], row[other]) for other in rivals):
            yield "In its favor: " + _sentence(figure, row, [mode], rivals)


def write(figure: Figure, value: float) -> str:
    """Write a value with its unit."""
    if figure.name in COUNTS_OF_JOBS or figure.name == "processes":
        return f"{value:,.0f}"
    if figure.unit == "us":
        return f"{value:,.0f} µs"
    digits = 3 if figure.unit == "s" and abs(value) < 10 else 2 if abs(value) < 10 else 1
    return f"{value:,.{digits}f} {figure.unit}".rstrip()


def write_all(figure: Figure, measured: Measured) -> str:
    """Write a figure and the span of its turns. For broken promises, write the number of turns."""
    value = write(figure, measured.value)
    if measured.low == measured.high and figure.kind is not Kind.SAFETY:
        return value
    if figure.kind is not Kind.SAFETY:
        return f"{value} ({write(figure, measured.low)} to {write(figure, measured.high)})"
    if measured.turns == 1 or not measured.struck:
        return value
    worst = f", {write(figure, measured.high)} at worst" if measured.struck > 1 else ""
    return f"{value} (in {measured.struck} of {measured.turns} turns{worst})"


def headline(verdict: Verdict, modes: Sequence[str]) -> str:
    """Return the verdict in a few words. ``modes`` are the played ones."""
    if verdict.untested:
        return "Not tested"
    cheaper = f"{' and '.join(verdict.cheapest)} at less cost" if set(verdict.cheapest) != set(verdict.best) else ""
    if not verdict.had_faults:
        return cheaper or "All cost the same"
    told_apart = set(verdict.best) != set(modes)
    first = f"Better: {' and '.join(verdict.best)}" if told_apart else "All are equally safe and fast"
    return f"{first}; {cheaper}" if cheaper else first
