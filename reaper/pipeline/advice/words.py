"""Writes recommendations as lines for people, and as JSON. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from reaper.pipeline.advice.timeouts import Advice, Promise, seconds
from workers.protocol.keys import stream_of_journal
from workers.protocol.messages import on_one_line


def group_of(advice: Advice) -> str:
    """Return the name of the group, as ``orders/billing``."""
    return f"{stream_of_journal(advice.record.stream)}/{advice.record.group}"


def as_lines(advices: Iterable[Advice]) -> Iterator[str]:
    """Return two lines for each group, and one for each job type that needs a longer timeout."""
    for advice in advices:
        in_force = advice.record.in_force_ms
        now = f" (in force: {seconds(in_force)})" if in_force else ""
        said = f"visibility timeout {seconds(advice.timeout_ms)}" if advice.timeout_ms else advice.verdict
        yield f"{on_one_line(group_of(advice))}: {said}{now}"
        yield f"  {advice.why[0].upper()}{advice.why[1:]}"
        for name, timeout_ms in advice.types.items():
            shown = on_one_line(name) or "(none)"
            yield f"  Jobs of type {shown} need {seconds(timeout_ms)}: enqueue them with visibility_timeout."


def as_json(advices: Iterable[Advice], promise: Promise) -> dict[str, Any]:
    """Return the promise and all recommendations."""
    return {
        "promise": {**asdict(promise), "floor_ms": promise.floor_ms},
        "groups": [
            {
                "group": group_of(advice),
                "workers": str(advice.record.workers),
                "executions": advice.record.executions,
                "longest_ms": advice.record.longest_ms,
                "cut_off": advice.record.cut_off,
                "in_force_ms": advice.record.in_force_ms,
                "verdict": str(advice.verdict),
                "timeout_ms": advice.timeout_ms,
                "why": advice.why,
                "types": advice.types,
            }
            for advice in advices
        ],
    }
