"""Traces, which are lists of arrivals and durations of jobs. One function reads a file. The others are pure.

The format is that of the Azure LLM inference trace (``TIMESTAMP,ContextTokens,GeneratedTokens``). A job takes context
tokens times prefill time plus generated tokens times decode time, so most jobs are short, and a few are slow but alive.

Errors name the options of a trace, for example ``--trace``.
"""

import csv
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TextIO

from workers.protocol.errors import ConfigurationError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_DIGITS = 9
MOST_JOBS = 1_000_000
"""Jobs of a drill, because its ledger knows each of them."""
LONGEST = timedelta(days=1)
"""The latest arrival after the first job, and the longest job. Beyond that, a unit is wrong."""
LONGEST_LINE = 10_000
"""Characters, because reading a file without lines, for example a device, would never end."""

# The generated trace is about as heavy-tailed as the real one, and shorter, for a demo.
_CONTEXT_MEDIAN, _CONTEXT_SIGMA, _CONTEXT_MAX = 2_000, 0.8, 8_000
_GENERATED_MEDIAN, _GENERATED_SIGMA, _GENERATED_MAX = 200, 1.1, 1_900


@dataclass(frozen=True, slots=True)
class Request:
    """One row of a trace. ``at`` counts from the first row."""

    at: timedelta
    context_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """The time that a token takes."""

    prefill: timedelta = timedelta(milliseconds=0.05)
    decode: timedelta = timedelta(milliseconds=0.5)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of the drill before it is enqueued. ``n`` numbers the jobs of a drill from 1."""

    n: int
    at: timedelta
    duration: timedelta


def plan_jobs(requests: Iterable[Request], times: TokenTimes, *, speedup: float = 1.0) -> list[PlannedJob]:
    """Turn requests into jobs. ``speedup`` shortens the time between arrivals, not the jobs. Empty in, empty out.

    Raises ConfigurationError for a job that is further away, or longer, than any drill.
    """
    jobs = []
    for n, request in enumerate(requests, start=1):
        # Numbers, because a trace can be longer than the longest timedelta.
        at_s = request.at.total_seconds() / speedup
        context_s = request.context_tokens * times.prefill.total_seconds()
        duration_s = context_s + request.generated_tokens * times.decode.total_seconds()
        if at_s > LONGEST.total_seconds():
            raise ConfigurationError(
                f"job {n} of the trace comes more than a day after the first one. Replay it faster (--speedup), or "
                "less of it (--limit)."
            )
        if duration_s > LONGEST.total_seconds():
            raise ConfigurationError(
                f"job {n} of the trace ({request.context_tokens} and {request.generated_tokens} tokens) takes more "
                "than a day. Lower --prefill-ms or --decode-ms."
            )
        jobs.append(PlannedJob(n, timedelta(seconds=at_s), timedelta(seconds=duration_s)))
    return jobs


def generate_requests(seed: int, *, count: int, rate: float) -> list[Request]:
    """Generate a trace by seed, with Poisson arrivals (``rate`` a second) and heavy-tailed token counts."""
    draw, at_s, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        context = min(_CONTEXT_MAX, max(1, round(_CONTEXT_MEDIAN * draw.lognormvariate(0.0, _CONTEXT_SIGMA))))
        generated = min(_GENERATED_MAX, max(1, round(_GENERATED_MEDIAN * draw.lognormvariate(0.0, _GENERATED_SIGMA))))
        requests.append(Request(timedelta(seconds=at_s), context, generated))
        at_s += draw.expovariate(rate)
    return requests


def read_requests(file: Path, *, limit: int | None = None) -> list[Request]:
    """Read the first ``limit`` rows of a trace file, in order of arrival.

    Raises ConfigurationError with file, line and column.
    """
    most = MOST_JOBS if limit is None else min(limit, MOST_JOBS)
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reading = _read_rows(file, _lines(file, text))
            rows = list(islice(reading, most))
            is_cut = most != limit and next(reading, None) is not None
    except OSError as error:
        raise ConfigurationError(f"cannot read --trace {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--trace {file} is not UTF-8 text: {error.reason}.") from error
    except csv.Error as error:
        raise ConfigurationError(f"--trace {file} is not CSV: {error}.") from error
    if is_cut:
        raise ConfigurationError(f"--trace {file} has more than {MOST_JOBS} requests. Limit them with --limit.")
    if not rows:
        raise ConfigurationError(f"--trace {file} has no requests. Add rows below its header.")
    first = min(at for at, _, _ in rows)
    requests = [Request(at - first, context, generated) for at, context, generated in rows]
    return sorted(requests, key=lambda request: request.at)


def _lines(file: Path, text: TextIO) -> Iterator[str]:
    number = 0
    while line := text.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise ConfigurationError(
                f"--trace {file}, line {number} has more than {LONGEST_LINE} characters. Name a CSV file of requests."
            )
        yield line


def _read_rows(file: Path, lines: Iterable[str]) -> Iterator[tuple[datetime, int, int]]:
    rows = csv.DictReader(lines)
    rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
    missing = [name for name in COLUMNS if name not in rows.fieldnames]
    if missing:
        raise ConfigurationError(
            f"--trace {file}, line 1: column {missing[0]!r} is missing. Write the header {','.join(COLUMNS)}."
        )
    for row in rows:
        cells = [(row[name], f"--trace {file}, line {rows.line_num}, column {name}") for name in COLUMNS]
        for value, where in cells:
            if value is None:
                raise ConfigurationError(f"{where} is missing: the row ends before it.")
        at, context, generated = ((value.strip(), where) for value, where in cells)
        yield _read_time(*at), _read_tokens(*context), _read_tokens(*generated)


def _read_time(value: str, where: str) -> datetime:
    try:
        at = datetime.fromisoformat(value)
        return (at.astimezone(UTC) if at.tzinfo else at).replace(tzinfo=None)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"{where}: {value!r} is not a time. Write it as 2023-11-16 18:17:03.979.") from error


def _read_tokens(value: str, where: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > MAX_DIGITS:
        raise ConfigurationError(f"{where}: {value!r} is not a number of tokens. Write a whole number, 0 or more.")
    return int(value)
