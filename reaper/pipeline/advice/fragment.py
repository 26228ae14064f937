"""Writes advice down: as settings that ``reaper run --config`` reads as they are, and as JSON. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from reaper.pipeline.advice.model import Advice, Cost, GroupAdvice, Interval, Verdict, Weights, Workers
from workers.protocol.keys import stream_of_journal
from workers.protocol.messages import counted, on_one_line

WIDTH = 110
_COLUMNS = f"{'':<14}{'timeout':>11}{'cost':>13}{'crashed wait':>14}{'run twice':>12}{'given up':>10}{'taken':>8}"
_SHOWN = 7
"""Points of the curve that are written into the settings, as a comment."""


def toml_string(text: str) -> str:
    """Return ``text`` as a TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def as_toml(advice: Sequence[GroupAdvice], weights: Weights) -> str:
    """Return settings: one ``[[groups]]`` table for each group a reaper serves, and why in comments."""
    lines = ["# Visibility timeouts, from what the journal tells: `reaper pipeline advise`."]
    lines += _wrapped(
        "Cost is seconds of waiting, expected of as many deliveries again: a crashed job waits for the timeout; a "
        f"second that is run twice counts {weights.rerun:g}, a job given up though it was done "
        f"{weights.dead_letter_s:g}, an extension {weights.request_s:g}."
    )
    for each in advice:
        lines += ["", *_group(each)]
    return "\n".join(lines) + "\n"


def _group(each: GroupAdvice) -> Iterator[str]:
    record, advice = each.record, each.advice
    stream = stream_of_journal(record.stream)
    yield from _wrapped(f"{on_one_line(stream)}/{on_one_line(record.group)}: {_basis(each)}")
    for note in advice.notes:
        yield from _wrapped(f"Note: {note}.")
    yield from _table(advice)
    yield from _wrapped(_certainty(advice))
    yield from _types(each)
    timeout = f"visibility_timeout = {_seconds(advice.best.timeout_ms)}"
    if record.mode == "embedded":
        yield from _wrapped("Its workers recover by themselves. In their settings: visibility_timeout, as below.")
        yield f"# {timeout}"
        return
    # What cannot be said is not to be put into force by copying it.
    mark = "# " if advice.verdict is Verdict.TOO_FEW else ""
    yield f"{mark}[[groups]]"
    yield f"{mark}stream = {toml_string(stream)}"
    yield f"{mark}group = {toml_string(record.group)}"
    yield f"{mark}{timeout}"


def _certainty(advice: Advice) -> str:
    timeout, cost = advice.timeout_ms, advice.cost_s
    if timeout.high is None or cost.high is None:
        return f"How long is best nobody can say; with nine chances in ten, at least {_seconds(round(timeout.low))} s."
    return (
        f"With nine chances in ten the best timeout lies between {_seconds(round(timeout.low))} s and "
        f"{_seconds(round(timeout.high))} s, and this one will cost between {cost.low:,.1f} s and {cost.high:,.1f} s."
    )


def _basis(each: GroupAdvice) -> str:
    record = each.record
    crashes = sum(kind.crashes for kind in record.kinds)
    slow = sum(kind.cut_off.count for kind in record.kinds)
    cut_off = (
        f" {counted(slow, 'job')} reached the timeout again and again: slow, nobody knows how much." if slow else ""
    )
    basis = f"{counted(record.deliveries, 'delivery')}, {crashes:g} of crashed workers.{cut_off}"
    if record.workers is Workers.EXTENDING:
        return f"{basis} Its workers extend what they hold, so only a worker that shows no life loses its jobs."
    if record.bounded:
        return (
            f"{basis} Its workers journal nothing: durations are upper bounds that the leader's scans allow, and a job "
            "longer than the timeout looks like a crash, unless that happens to it again."
        )
    return f"{basis} Not all its workers are known to extend what they hold: a job must be done within the timeout."


def _table(advice: Advice) -> Iterator[str]:
    yield f"#   {_COLUMNS}"
    yield f"#   {_row('recommended', advice.best)}"
    for name, cost in advice.rules.items():
        yield f"#   {_row(name, cost)}"
    for cost in _some(advice.curve, advice.best.timeout_ms):
        yield f"#   {_row('', cost)}"


def _some(curve: Sequence[Cost], around_ms: int) -> Sequence[Cost]:
    """Return a few points of the curve, from a quarter of the best timeout to four times it."""
    near = [cost for cost in curve if around_ms / 4 <= cost.timeout_ms <= around_ms * 4] or list(curve)
    stride = max(1, -(-len(near) // _SHOWN))
    return near[::stride]


def _types(each: GroupAdvice) -> Iterator[str]:
    """Say which types of jobs would need another timeout: a job may ask for a longer one by itself."""
    for name, advice in each.by_type.items():
        if advice.verdict is Verdict.TOO_FEW:
            continue  # what a few deliveries seem to need is no reason to ask for it
        timeout_ms = advice.best.timeout_ms
        longer = timeout_ms > each.advice.best.timeout_ms
        hint = "; its producers may ask for it: enqueue(..., visibility_timeout=...)" if longer else ""
        yield from _wrapped(
            f"By itself, type {on_one_line(name) or '(none)'} would have {_seconds(timeout_ms)} s{hint}."
        )


def _row(name: str, cost: Cost) -> str:
    return (
        f"{name:<14}{_seconds(cost.timeout_ms) + ' s':>11}{cost.total_s:>11.1f} s{cost.waiting_s:>12.1f} s"
        f"{cost.twice_s:>10.1f} s{cost.dead_letters:>10.1f}{cost.taken:>8.1f}"
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".")


def _wrapped(sentence: str) -> Iterator[str]:
    line = "#"
    for word in sentence.split():
        if len(line) + 1 + len(word) > WIDTH and line != "#":
            yield line
            line = "#"
        line += f" {word}"
    yield line


# ---- for machines


def as_json(advice: Iterable[GroupAdvice], weights: Weights) -> dict[str, Any]:
    """Return everything: what was counted, the curves, and what they rest on."""
    return {"weights": asdict(weights), "groups": [_group_json(each) for each in advice]}


def _group_json(each: GroupAdvice) -> dict[str, Any]:
    record = each.record
    return {
        "stream": stream_of_journal(record.stream),
        "group": record.group,
        "workers": str(record.workers),
        "mode": record.mode,
        "bounded": record.bounded,
        "configured_ms": record.configured_ms,
        "process_s": record.process_s,
        "deliveries": record.deliveries,
        "crashes": sum(kind.crashes for kind in record.kinds),
        "cut_off": sum(kind.cut_off.count for kind in record.kinds),
        "doubtful": record.doubtful,
        **_advice_json(each.advice),
        "interval": {"timeout_ms": _interval(each.advice.timeout_ms), "cost_s": _interval(each.advice.cost_s)},
        "drift": each.advice.drift,
        "types": {name: _advice_json(advice) for name, advice in each.by_type.items()},
    }


def _interval(interval: Interval) -> list[float | None]:
    return [interval.low, interval.high]


def _advice_json(advice: Advice) -> dict[str, Any]:
    return {
        "verdict": str(advice.verdict),
        "recommended_ms": advice.best.timeout_ms,
        "recommended": asdict(advice.best),
        "rules": {name: asdict(cost) for name, cost in advice.rules.items()},
        "notes": list(advice.notes),
        "curve": [asdict(cost) for cost in advice.curve],
    }
