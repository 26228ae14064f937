"""Traces: reading, making up, planning."""

from datetime import timedelta
from pathlib import Path

import pytest

from reaper.drill import trace
from reaper.drill.trace import PlannedJob, Request, TokenTimes, generate_requests, plan_jobs, read_requests
from workers.protocol.errors import ConfigurationError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def _written(folder: Path, text: str) -> Path:
    file = folder / "trace.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_job_takes_its_context_tokens_and_its_generated_tokens() -> None:
    times = TokenTimes(prefill=timedelta(milliseconds=1), decode=timedelta(milliseconds=10))
    assert plan_jobs([Request(timedelta(seconds=8), 5, 7)], times) == [
        PlannedJob(1, timedelta(seconds=8), timedelta(milliseconds=75))
    ]


def test_a_speedup_shortens_the_time_between_jobs_and_not_the_jobs() -> None:
    requests = [Request(timedelta(seconds=at), 0, 2) for at in (0, 10)]
    assert plan_jobs(requests, TokenTimes(decode=timedelta(seconds=1)), speedup=4) == [
        PlannedJob(1, timedelta(0), timedelta(seconds=2)),
        PlannedJob(2, timedelta(seconds=2.5), timedelta(seconds=2)),
    ]


def test_the_format_of_the_public_trace_is_read(tmp_path: Path) -> None:
    file = _written(tmp_path, f"{HEADER}2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,3180,8\n")
    assert read_requests(file) == [Request(timedelta(0), 4808, 10), Request(timedelta(seconds=0.5), 3180, 8)]


def test_a_limit_leaves_the_rest_of_the_file_unread(tmp_path: Path) -> None:
    file = _written(tmp_path, f"{HEADER}2023-11-16 00:00:00,1,2\nrubbish\n")
    assert read_requests(file, limit=1) == [Request(timedelta(0), 1, 2)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: column 'TIMESTAMP' is missing"),
        ("TIMESTAMP,ContextTokens\n", "line 1: column 'GeneratedTokens' is missing"),
        (HEADER, "has no requests"),
        (f"{HEADER}2023-11-16 00:00:00,1,2\nyesterday,1,2\n", "line 3, column TIMESTAMP: 'yesterday' is not a time"),
        (f"{HEADER}2023-11-16 00:00:00,1.5,2\n", "line 2, column ContextTokens: '1.5' is not a number of tokens"),
        (f"{HEADER}2023-11-16 00:00:00,1,-2\n", "line 2, column GeneratedTokens: '-2' is not a number of tokens"),
        (f"{HEADER}2023-11-16 00:00:00,1\n", "line 2, column GeneratedTokens is missing"),
        (f"{HEADER}2023-11-16 00:00:00,1,{'9' * 5000}\n", "line 2, column GeneratedTokens"),
        (
            f"{HEADER}9999-12-31 23:59:59-01:00,1,2\n",
            "line 2, column TIMESTAMP: '9999-12-31 23:59:59-01:00' is not a time",
        ),
        (f"{HEADER}{'x' * 10_001}\n", "line 2 has more than 10000 characters"),
    ],
)
def test_a_trace_that_cannot_be_read_is_rejected_by_file_line_and_column(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = _written(tmp_path, text)
    with pytest.raises(ConfigurationError) as rejection:
        read_requests(file)
    assert str(rejection.value).startswith(f"--trace {file}")
    assert sentence in str(rejection.value)


def test_a_missing_file_and_a_file_that_is_no_text_are_rejected_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read --trace .*: No such file"):
        read_requests(tmp_path / "nowhere.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        read_requests(tmp_path / "binary.csv")


def test_a_device_is_not_read_for_ever() -> None:
    with pytest.raises(ConfigurationError, match=r"^--trace /dev/zero, line 1 has more than"):
        read_requests(Path("/dev/zero"))


def test_more_jobs_than_a_drill_can_keep_are_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_JOBS", 2)
    file = _written(tmp_path, HEADER + "2023-11-16 00:00:00,1,2\n" * 3)
    for limit in (None, 3):
        with pytest.raises(ConfigurationError, match=r"has more than 2 requests\. Limit them with --limit"):
            read_requests(file, limit=limit)
    assert len(read_requests(file, limit=2)) == 2


def test_times_of_several_zones_are_put_in_order(tmp_path: Path) -> None:
    rows = ("2023-11-16 02:00:01+02:00,1,1", "2023-11-16 00:00:00+00:00,2,2", "2023-11-16 00:00:02,3,3")
    requests = read_requests(_written(tmp_path, HEADER + "\n".join(rows) + "\n"))
    assert [(request.at.total_seconds(), request.context_tokens) for request in requests] == [(0, 2), (1, 1), (2, 3)]


@pytest.mark.parametrize(
    ("speedup", "token_ms", "options"),
    [(0.001, 1.0, ("--speedup", "--limit")), (5e-324, 1.0, ("--speedup",)), (1.0, 86_400_000.0, ("--prefill-ms",))],
)
def test_what_would_take_more_than_a_day_is_rejected_by_what_makes_it_so(
    speedup: float, token_ms: float, options: tuple[str, ...]
) -> None:
    requests = [Request(timedelta(0), 1, 0), Request(timedelta(seconds=100), 999_999_999, 999_999_999)]
    times = TokenTimes(timedelta(milliseconds=token_ms), timedelta(milliseconds=token_ms))
    with pytest.raises(ConfigurationError, match=r"^job 2 of the trace .* more than a day") as rejection:
        plan_jobs(requests, times, speedup=speedup)
    assert all(option in str(rejection.value) for option in options)


def test_a_made_up_trace_is_the_same_for_the_same_seed_and_only_then() -> None:
    assert generate_requests(7, count=50, rate=10) == generate_requests(7, count=50, rate=10)
    assert generate_requests(7, count=50, rate=10) != generate_requests(8, count=50, rate=10)
