"""The ledger for people (plain text) and for machines (JSON)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from reaper.drill.healthy import Figures
from reaper.drill.ledger import Ledger, LossCause
from reaper.drill.promises import Fate
from reaper.drill.recoveries import Recovery
from reaper.drill.spread import Spread
from reaper.drill.terms import Holding
from reaper.drill.usage import Usage

_LABEL_WIDTH = 26


def as_json(ledger: Ledger, *, started_at: float, objections: Sequence[str]) -> dict[str, Any]:
    """Return the ledger for a report. Times are seconds since ``started_at`` (wall clock), durations seconds."""
    return {
        "started_at": datetime.fromtimestamp(started_at, UTC).isoformat(),
        "balanced": ledger.balanced,
        "objections": list(objections),
        "enqueued": ledger.enqueued,
        "settled": ledger.fates[Fate.SETTLED],
        "dead_lettered": ledger.fates[Fate.DEAD_LETTERED],
        "poison": ledger.poison,
        "stuck": ledger.stuck,
        "lost": ledger.fates[Fate.LOST],
        "dropped": ledger.lost_by(LossCause.DROPPED),
        "forgotten": ledger.lost_by(LossCause.FORGOTTEN),
        "losses": [asdict(loss) for loss in ledger.losses],
        "altered": list(ledger.altered),
        "second_starts": [asdict(start) for start in ledger.second_starts],
        "duplicates": [asdict(duplicate) for duplicate in ledger.duplicates],
        "recovered": ledger.recovered,
        "recovery_s": asdict(ledger.recovery_s),
        "overshoot_s": asdict(ledger.overshoot_s),
        "early_recoveries": ledger.early_recoveries,
        "stale_writes_refused": ledger.stale_writes_refused,
        "settlements_refused": ledger.settlements_refused,
        "healthy": {
            "jobs": ledger.healthy.jobs,
            "total": _figures(ledger.healthy.total),
            "during_faults": _figures(ledger.healthy.during_faults),
        },
        "terms": [
            {
                "holder": term.holder,
                "token": term.token,
                "from": _since(term.since, started_at),
                "to": _since(term.until, started_at),
                "ended": term.ended,
            }
            for term in ledger.terms
        ],
        "faults": [
            {
                "kind": fault.kind,
                "target": fault.target,
                "time": _since(fault.at, started_at),
                "until": _since(fault.until, started_at),
                "in_flight": fault.in_flight,
                "jobs": list(fault.jobs),
            }
            for fault in ledger.faults
        ],
        "missed_faults": [asdict(missed) for missed in ledger.missed],
        "unexpected_ends": list(ledger.unexpected_ends),
    }


def _figures(figures: Figures) -> dict[str, Any]:
    return {**asdict(figures), "throughput_per_s": figures.throughput_per_s}


def usage_as_json(usage: Usage, idle: Usage | None, *, jobs: int) -> dict[str, Any]:
    """Return what was used for a report: seconds in all, and by job (microseconds of CPU time)."""

    def per_job(amount: float | None) -> float | None:
        return amount / jobs if jobs and amount is not None else None

    def us_per_job(seconds: float | None) -> float | None:
        return per_job(None if seconds is None else seconds * 1e6)

    return {
        "wall_s": usage.seconds,
        "redis_requests": usage.requests,
        "redis_requests_per_job": per_job(usage.requests),
        "redis_cpu_s": usage.redis_cpu_s,
        "redis_cpu_us_per_job": us_per_job(usage.redis_cpu_s),
        "cpu_s": dict(usage.cpu_s),
        "cpu_us_per_job": {role: us_per_job(used) for role, used in usage.cpu_s.items()},
        "idle": None if idle is None else _idle(idle),
    }


def _idle(idle: Usage) -> dict[str, Any]:
    return {
        "seconds": idle.seconds,
        "redis_requests_per_s": (idle.requests or 0) / idle.seconds,
        "redis_cpu_ms_per_s": (idle.redis_cpu_s or 0.0) / idle.seconds * 1000,
        "cpu_ms_per_s": {role: used / idle.seconds * 1000 for role, used in idle.cpu_s.items()},
    }


def _since(at: float | None, started_at: float) -> float | None:
    return None if at is None else round(at - started_at, 3)


def as_text(ledger: Ledger, *, recovery: Recovery, started_at: float) -> str:
    """Return the ledger as a table of lines; those are left out that ``recovery`` cannot fill."""
    held = "" if recovery.recovers else "   (held by workers that are dead)"
    rows = [
        ("enqueued", str(ledger.enqueued)),
        ("settled", str(ledger.fates[Fate.SETTLED])),
        ("dead-lettered", f"{ledger.fates[Fate.DEAD_LETTERED]}   (poison jobs put in: {ledger.poison})"),
        ("stuck", f"{ledger.stuck}{held}"),
        ("lost", _losses(ledger)),
        *(_rows_of_recovery(ledger) if recovery.recovers else ()),
        *(_rows_of_leaders(ledger, started_at) if recovery.by_reapers else ()),
        ("balanced", "yes" if ledger.balanced else "NO"),
    ]
    return "\n".join(f"  {label:<{_LABEL_WIDTH}}{value}" for label, value in rows)


def _losses(ledger: Ledger) -> str:
    lost, dropped, forgotten = ledger.fates[Fate.LOST], *map(ledger.lost_by, (LossCause.DROPPED, LossCause.FORGOTTEN))
    if forgotten:
        return f"{lost}   (forgotten by Redis because of a fault: {forgotten})"
    if not dropped:
        return str(lost)
    innocent = sum(not loss.poison for loss in ledger.losses)
    return f"{lost}   (given up with a line in a log: {dropped}; no poison: {innocent})"


def _rows_of_recovery(ledger: Ledger) -> list[tuple[str, str]]:
    return [
        ("recovered", str(ledger.recovered)),
        ("second starts", _by_cause(start.cause for start in ledger.second_starts)),
        ("duplicates", _by_cause(duplicate.cause for duplicate in ledger.duplicates)),
        ("fault to second start", _spread(ledger.recovery_s)),
        ("past visibility timeout", _spread(ledger.overshoot_s)),
        ("early recoveries", str(ledger.early_recoveries)),
    ]


def _rows_of_leaders(ledger: Ledger, started_at: float) -> list[tuple[str, str]]:
    return [
        ("stale writes refused", str(ledger.stale_writes_refused)),
        *(("terms" if i == 0 else "", _term(term, started_at)) for i, term in enumerate(ledger.terms)),
    ]


def _by_cause(causes: Iterable[str]) -> str:
    counted = Counter(causes)
    details = ", ".join(f"{cause} {count}" for cause, count in counted.most_common())
    return f"{counted.total()}   ({details})" if counted else "0"


def _spread(values: Spread) -> str:
    if values.p50 is None or values.p99 is None or values.max is None:
        return "-"
    return f"p50 {values.p50:.3f} s, p99 {values.p99:.3f} s, max {values.max:.3f} s"


def _term(term: Holding, started_at: float) -> str:
    since = max(0.0, term.since - started_at)  # the first begins before the first job
    times = f"from {since:.1f} s" if term.until is None else f"{since:.1f} s to {term.until - started_at:.1f} s"
    return f"{term.token}: {term.holder.split('.')[0]}, {times}: {term.ended}"
