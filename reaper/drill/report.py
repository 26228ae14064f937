"""The ledger as a table for people, and as JSON for machines."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from reaper.drill.figures import Spread
from reaper.drill.ledger import Ledger
from reaper.drill.meters import Usage
from reaper.drill.promises import Fate
from reaper.drill.recoveries import Recovery


def as_json(ledger: Ledger, *, started_at: float, objections: Sequence[str]) -> dict[str, Any]:
    """Return the ledger for a report. Times are seconds since ``started_at`` (wall clock), durations seconds."""

    def since(at: float | None) -> float | None:
        return None if at is None else round(at - started_at, 3)

    facts = asdict(ledger)
    facts["missed_faults"] = facts.pop("missed")
    del facts["fates"], facts["violations"]
    return facts | {
        "started_at": datetime.fromtimestamp(started_at, UTC).isoformat(),
        "balanced": ledger.balanced,
        "objections": list(objections),
        "settled": ledger.fates[Fate.SETTLED],
        "dead_lettered": ledger.fates[Fate.DEAD_LETTERED],
        "stuck": ledger.stuck,
        "lost": ledger.fates[Fate.LOST],
        "forgotten": ledger.forgotten,
        "faults": [
            {"kind": fault.kind, "target": fault.target, "time": since(fault.at), "until": since(fault.until),
             "in_flight": fault.in_flight, "jobs": fault.jobs}
            for fault in ledger.faults
        ],
    }  # fmt: skip


def usage_as_json(usage: Usage, *, jobs: int) -> dict[str, Any]:
    """Return CPU time and requests for a report, in all and a job (CPU in microseconds)."""

    def per_job(amount: float | None, scale: float = 1.0) -> float | None:
        return None if amount is None or not jobs else amount * scale / jobs

    return {
        "wall_s": usage.seconds,
        "redis_requests": usage.requests,
        "redis_requests_per_job": per_job(usage.requests),
        "redis_cpu_s": usage.redis_cpu_s,
        "redis_cpu_us_per_job": per_job(usage.redis_cpu_s, 1e6),
        "cpu_s": dict(usage.cpu_s),
        "cpu_us_per_job": {role: per_job(used, 1e6) for role, used in usage.cpu_s.items()},
    }


def as_text(ledger: Ledger, *, recovery: Recovery) -> str:
    """Return the ledger as a table, without the lines that ``recovery`` cannot fill."""
    held = "" if recovery.promises else "   (held by workers that are dead)"
    forgotten = f"   (forgotten by Redis because of a fault: {ledger.forgotten})" if ledger.forgotten else ""
    rows = [
        ("enqueued", str(ledger.enqueued)),
        ("settled", str(ledger.fates[Fate.SETTLED])),
        ("dead-lettered", f"{ledger.fates[Fate.DEAD_LETTERED]}   (poison jobs put in: {ledger.poison})"),
        ("stuck", f"{ledger.stuck}{held}"),
        ("lost", f"{ledger.fates[Fate.LOST]}{forgotten}"),
    ]
    if recovery.promises:
        rows += [
            ("recovered", str(ledger.recovered)),
            ("second starts", _by_cause(start.cause for start in ledger.second_starts)),
            ("duplicates", _by_cause(duplicate.cause for duplicate in ledger.duplicates)),
            ("fault to second start", _spread(ledger.recovery_s)),
            ("past visibility timeout", _spread(ledger.overshoot_s)),
            ("early recoveries", str(ledger.early_recoveries)),
        ]
    if recovery.by_reapers:
        rows.append(("writes fenced", str(ledger.writes_fenced)))
    rows.append(("balanced", "yes" if ledger.balanced else "NO"))
    return "\n".join(f"  {label:<26}{value}" for label, value in rows)


def _by_cause(causes: Iterable[str]) -> str:
    counted = Counter(causes)
    details = ", ".join(f"{cause} {count}" for cause, count in counted.most_common())
    return f"{counted.total()}   ({details})" if counted else "0"


def _spread(values: Spread) -> str:
    if values.p50 is None or values.p99 is None or values.max is None:
        return "-"
    return f"p50 {values.p50:.3f} s, p99 {values.p99:.3f} s, max {values.max:.3f} s"
