"""Traces: when each job arrives and how long it takes. Pure functions, and one that reads a file.

The format is that of the Azure LLM inference trace: ``TIMESTAMP,ContextTokens,GeneratedTokens``. A job takes context
tokens times prefill time plus generated tokens times decode time, so a trace of such calls is what a queue of them is:
mostly short jobs, and a few that are slow but alive.
"""

import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

from workers.protocol.errors import ConfigurationError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_DIGITS = 9

# The generated trace: about as heavy-tailed as the real one, and shorter by what a demo has patience for.
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
    """What a token costs."""

    prefill: timedelta = timedelta(milliseconds=0.05)
    decode: timedelta = timedelta(milliseconds=0.5)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of the drill before it is enqueued. ``n`` numbers the jobs of a drill from 1."""

    n: int
    at: timedelta
    duration: timedelta


def plan_jobs(requests: Iterable[Request], times: TokenTimes, *, speedup: float = 1.0) -> list[PlannedJob]:
    """Turn requests into jobs. ``speedup`` shortens the time between arrivals, not the jobs. Empty in, empty out."""
    return [
        PlannedJob(
            n,
            request.at / speedup,
            request.context_tokens * times.prefill + request.generated_tokens * times.decode,
        )
        for n, request in enumerate(requests, start=1)
    ]


def generate_requests(seed: int, *, count: int, rate: float) -> list[Request]:
    """Make up a trace: Poisson arrivals (``rate`` a second), heavy-tailed token counts, the same for the same seed."""
    draw = random.Random(seed)
    at = 0.0
    requests = []
    for _ in range(count):
        requests.append(
            Request(
                timedelta(seconds=at),
                _heavy_tailed(draw, _CONTEXT_MEDIAN, _CONTEXT_SIGMA, _CONTEXT_MAX),
                _heavy_tailed(draw, _GENERATED_MEDIAN, _GENERATED_SIGMA, _GENERATED_MAX),
            )
        )
        at += draw.expovariate(rate)
    return requests


def _heavy_tailed(draw: random.Random, median: int, sigma: float, longest: int) -> int:
    return min(longest, max(1, round(median * draw.lognormvariate(0.0, sigma))))


def read_requests(file: Path, *, limit: int | None = None) -> list[Request]:
    """Read the first ``limit`` rows of a trace file, in order of arrival.

    Raises ConfigurationError, naming file, line and column, for what cannot be read.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(islice(_read_rows(file, lines), limit))
    except OSError as error:
        raise ConfigurationError(f"trace {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"trace {file} is no text in UTF-8: {error.reason}.") from error
    except csv.Error as error:
        raise ConfigurationError(f"trace {file} is no CSV: {error}.") from error
    if not rows:
        raise ConfigurationError(f"trace {file} holds no requests: it needs rows below its header.")
    first = min(at for at, _, _ in rows)
    requests = [Request(at - first, context, generated) for at, context, generated in rows]
    return sorted(requests, key=lambda request: request.at)


def _read_rows(file: Path, lines: Iterable[str]) -> Iterator[tuple[datetime, int, int]]:
    rows = csv.reader(lines)
    header = tuple(name.strip() for name in next(rows, []))
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise ConfigurationError(
            f"trace {file}, line 1: column {missing[0]!r} is missing; the header must name {','.join(COLUMNS)}."
        )
    places = [header.index(name) for name in COLUMNS]
    for row in rows:
        if row:
            where = f"trace {file}, line {rows.line_num}, column"
            at, context, generated = (_cell(row, place, f"{where} {header[place]}") for place in places)
            yield (
                _read_time(at, f"{where} TIMESTAMP"),
                _read_tokens(context, f"{where} ContextTokens"),
                _read_tokens(generated, f"{where} GeneratedTokens"),
            )


def _cell(row: Sequence[str], place: int, where: str) -> str:
    if place >= len(row):
        raise ConfigurationError(f"{where} is missing: the row ends before it.")
    return row[place].strip()


def _read_time(value: str, where: str) -> datetime:
    try:
        return datetime.fromisoformat(value).replace(tzinfo=None)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {value!r} is no time; write it as 2023-11-16 18:17:03.979.") from error


def _read_tokens(value: str, where: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > MAX_DIGITS:
        raise ConfigurationError(f"{where}: {value!r} is no number of tokens; write a whole number, 0 or more.")
    return int(value)
