"""Traces: reading, making up, planning."""

from datetime import timedelta
from pathlib import Path

import pytest

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


def test_other_columns_other_orders_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    file = _written(
        tmp_path,
        "GeneratedTokens,Model,TIMESTAMP,ContextTokens\n7,m,2023-11-16 00:00:05,6\n\n8,m,2023-11-16 00:00:03,9\n",
    )
    assert read_requests(file) == [Request(timedelta(0), 9, 8), Request(timedelta(seconds=2), 6, 7)]


def test_a_limit_leaves_the_rest_of_the_file_unread(tmp_path: Path) -> None:
    file = _written(tmp_path, f"{HEADER}2023-11-16 00:00:00,1,2\nrubbish\n")
    assert read_requests(file, limit=1) == [Request(timedelta(0), 1, 2)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: column 'TIMESTAMP' is missing"),
        ("TIMESTAMP,ContextTokens\n", "line 1: column 'GeneratedTokens' is missing"),
        (HEADER, "holds no requests"),
        (f"{HEADER}2023-11-16 00:00:00,1,2\nyesterday,1,2\n", "line 3, column TIMESTAMP: 'yesterday' is no time"),
        (f"{HEADER}2023-11-16 00:00:00,1.5,2\n", "line 2, column ContextTokens: '1.5' is no number of tokens"),
        (f"{HEADER}2023-11-16 00:00:00,1,-2\n", "line 2, column GeneratedTokens: '-2' is no number of tokens"),
        (f"{HEADER}2023-11-16 00:00:00,1\n", "line 2, column GeneratedTokens is missing"),
        (f"{HEADER}2023-11-16 00:00:00,1,{'9' * 5000}\n", "line 2, column GeneratedTokens"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_by_file_line_and_column(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = _written(tmp_path, text)
    with pytest.raises(ConfigurationError) as refusal:
        read_requests(file)
    assert f"trace {file}" in str(refusal.value)
    assert sentence in str(refusal.value)


def test_a_missing_file_and_a_file_that_is_no_text_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_requests(tmp_path / "nowhere.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="no text in UTF-8"):
        read_requests(tmp_path / "binary.csv")


def test_a_made_up_trace_is_the_same_for_the_same_seed_and_only_then() -> None:
    assert generate_requests(7, count=50, rate=10) == generate_requests(7, count=50, rate=10)
    assert generate_requests(7, count=50, rate=10) != generate_requests(8, count=50, rate=10)


def test_a_made_up_trace_is_heavy_tailed_and_arrives_at_its_rate() -> None:
    requests = generate_requests(3, count=5_000, rate=50)
    generated = sorted(request.generated_tokens for request in requests)
    assert generated[-50] > 5 * generated[2_500]
    assert 90 < requests[-1].at.total_seconds() < 110
    assert [request.at for request in requests] == sorted(request.at for request in requests)
