"""The second computation, in plain Python over the raw journal, event by event, without code of the pipeline.

Slow and simple on purpose. It follows docs/protocol.md, and the definitions of docs/analysis.md.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from workers.protocol.events import events_of

Quantiles = tuple[int, ...]
"""How many there are, p50, p95, p99, p99.9, the largest."""


@dataclass(frozen=True)
class Told:
    """One entry of a journal."""

    stream: str
    ms: int
    seq: int
    event: str
    job: str
    data: Mapping[str, Any]

    @property
    def stalled(self) -> bool:
        return self.event in ("recovered", "quarantined", "dead_lettered") and "idle_ms" in self.data


def read(stream: str, entry_id: bytes, flat: Sequence[bytes]) -> Iterator[Told]:
    """Read one raw entry, which is one event, or a row for each job."""
    ms, seq = map(int, entry_id.decode().split("-"))
    yield from (Told(stream, ms, seq, told.event, told.job, told.data) for told in events_of(entry_id, flat))


def in_order(events: Iterable[Told]) -> list[Told]:
    return sorted(events, key=lambda told: (told.ms, told.seq))


def ranked(values: Iterable[int]) -> Quantiles:
    ordered = sorted(values)
    ranks = (math.ceil(share * len(ordered) / 1000) for share in (500, 950, 990, 999))
    return (len(ordered), *(ordered[rank - 1] for rank in ranks), ordered[-1])


# ---- the life of a job


@dataclass
class Delivery:
    """One delivery of an entry to a consumer, as far as the journal shows it."""

    generation: int
    entry: str
    number: int
    begins: list[int] = field(default_factory=list)
    """When it had begun at the latest."""
    delivered: list[int] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    @property
    def start(self) -> int | None:
        if self.begins:
            return min(self.begins)
        unstarted = any("run_ms" in told.data for told in self.told)
        return None if unstarted else min(self.delivered)

    def has(self, *names: str) -> bool:
        return any(told.event in names for told in self.told)

    @property
    def completions(self) -> int:
        return sum(
            told.event == "acked" or (told.event == "rejected" and told.data["verb"] == "ack") for told in self.told
        )

    @property
    def stall(self) -> Told | None:
        return next((told for told in self.told if told.stalled), None)


def lives(events: Iterable[Told]) -> dict[tuple[str, str, str], list[Delivery]]:
    """Return the deliveries of each job, in their order."""
    found: dict[tuple[str, str, str], dict[tuple[int, str, int], Delivery]] = defaultdict(dict)
    for told in events:
        data = told.data
        released = told.event == "recovered" and data.get("reason") == "released"
        if not told.job or "entry" not in data or released or told.event in ("redriven", "lost_payload"):
            continue
        number = data["delivery"] + (data.get("reason") in {"not_released", "never_arrived"})
        key = (data["generation"], data["entry"], number)
        delivery = found[told.stream, data["group"], told.job].setdefault(key, Delivery(*key))
        delivery.told.append(told)
        if "begun_ms" in data:
            delivery.begins.append(data["begun_ms"])
        if "delivered_ms" in data:
            delivery.delivered.append(data["delivered_ms"])
        else:
            delivery.delivered.append(told.ms - max(0, data["idle_ms"]) if told.stalled else told.ms)
    return {
        job: sorted(deliveries.values(), key=lambda each: (each.generation, each.number, min(each.delivered)))
        for job, deliveries in found.items()
    }


def cause_after(before: Delivery, generation: int) -> str:
    """Say why a job was started again after ``before``."""
    stall = before.stall
    if before.generation < generation:
        return "redriven"
    if stall:
        visibility = stall.data.get("visibility_ms")
        if visibility is not None and 0 <= stall.data["idle_ms"] < visibility:
            return "early_recovery"
        ran = max((told.data["run_ms"] for told in before.told if "run_ms" in told.data), default=None)
        if ran is not None:
            return "slow" if visibility is not None and ran >= visibility else "late_settlement"
        return "crash"
    nacks = [told for told in before.told if told.event == "nacked"]
    if nacks:
        return "retried" if nacks[0].data.get("verb") == "retry" else "failed"
    return "handed_back" if before.has("handed_back") else "unexplained"


def second_starts(events: Iterable[Told]) -> set[tuple[str, str, int, int, str]]:
    """Return group, job, number of the start, when, and why."""
    found = set()
    for (_, group, job), deliveries in lives(events).items():
        started = [each for each in deliveries if each.start is not None]
        for number, (before, after) in enumerate(pairwise(started), start=2):
            assert after.start is not None
            found.add((group, job, number, after.start, cause_after(before, after.generation)))
    return found


def duplicates(events: Sequence[Told]) -> set[tuple[str, str, int]]:
    """Return group, job and how often its work was completed."""
    found = set()
    for (_, group, job), deliveries in lives(events).items():
        times: Counter[int] = Counter()
        for each in deliveries:
            acks = sum(1 for told in each.told if told.event == "acked")
            times[each.generation] += max(acks, 1) if each.completions else 0
        found |= {(group, job, count) for count in times.values() if count > 1}
    return found


def recoveries(events: Iterable[Told]) -> dict[tuple[str, str, str], tuple[list[int], list[int]]]:
    """Return overshoots and waits by mode, outcome and reason."""
    found: dict[tuple[str, str, str], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for deliveries in lives(events).values():
        for place, delivery in enumerate(deliveries):
            stall = delivery.stall
            if not stall:
                continue
            overshoots, waits = found[stall.data["mode"], stall.event, stall.data["reason"]]
            if "visibility_ms" in stall.data and stall.data["idle_ms"] >= 0:
                overshoots.append(stall.data["idle_ms"] - stall.data["visibility_ms"])
            later = [each.start for each in deliveries[place + 1 :] if each.start is not None]
            if later:
                waits.append(max(0, min(later) - stall.ms))
    return dict(found)


def unsettled(events: Iterable[Told]) -> set[tuple[str, str, str]]:
    """Return group, job and its last event, of jobs whose last word is none that ends them."""
    last_word: dict[tuple[str, str], Told] = {}
    open_since: dict[tuple[str, str], bool] = {}
    for told in in_order(events):
        if not told.job or told.event == "rejected":
            continue
        job = (told.data["group"], told.job)
        last_word[job] = told
        if told.event in ("acked", "dead_lettered", "lost_payload"):
            open_since[job] = False
        elif told.event in ("recovered", "quarantined", "nacked", "handed_back", "redriven"):
            open_since[job] = True
        else:
            open_since.setdefault(job, True)
    return {(*job, last_word[job].event) for job, is_open in open_since.items() if is_open}


# ---- counts


def durations(events: Iterable[Told]) -> dict[tuple[str, str], Quantiles]:
    """Return waits and runs of acknowledged deliveries by type and measure."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for told in events:
        if told.event == "acked":
            data, kind = told.data, told.data.get("type", "")
            if "run_ms" in data:
                found[kind, "run"].append(data["run_ms"])
            if "ready_ms" in data:
                found[kind, "wait"].append(max(0, data["delivered_ms"] - data["ready_ms"]))
    return {key: ranked(values) for key, values in found.items()}


def deliveries_until_done(events: Iterable[Told]) -> dict[int, int]:
    return dict(Counter(told.data["delivery"] for told in events if told.event == "acked"))


def stalls_by_worker(events: Iterable[Told]) -> dict[str, tuple[int, int, int]]:
    """Return processes, ended deliveries and stalls of each worker."""
    processes: dict[str, set[str]] = defaultdict(set)
    ended: Counter[str] = Counter()
    stalled: Counter[str] = Counter()
    for told in events:
        consumer = told.data.get("consumer")
        if consumer and (told.stalled or told.event in ("acked", "nacked", "handed_back", "dead_lettered")):
            worker = re.sub(r"~[0-9a-f]{12}$", "", consumer)
            ended[worker] += 1
            stalled[worker] += told.stalled
        if consumer:
            processes[re.sub(r"~[0-9a-f]{12}$", "", consumer)].add(consumer)
    return {worker: (len(processes[worker]), ended[worker], stalled[worker]) for worker in ended}


def late_writes(events: Iterable[Told]) -> dict[tuple[str, str], int]:
    """Return the number of late writes by event and verb."""
    return dict(Counter((told.event, told.data["verb"]) for told in events if told.event in ("rejected", "fenced")))


def terms(events: Iterable[Told]) -> list[tuple[int, str, int | None, int | None, str, int | None]]:
    """Return token, holder, begin, end, how it ended and the gap after it, of one group."""
    leases = [told for told in in_order(events) if told.event in ("lease_taken", "lease_left")]
    holders = list(dict.fromkeys(told.data["holder"] for told in leases))
    of = {holder: {told.event: told for told in leases if told.data["holder"] == holder} for holder in holders}
    rows = []
    for holder, following in zip(holders, [*holders[1:], None], strict=True):
        begin, end = of[holder].get("lease_taken"), of[holder].get("lease_left")
        how = end.data["reason"] if end else "expired" if following else "holds"
        gap = of[following]["lease_taken"].ms - end.ms if following and end else None
        first = begin or end
        assert first
        rows.append((first.data["token"], holder, begin.ms if begin else None, end.ms if end else None, how, gap))
    return rows
