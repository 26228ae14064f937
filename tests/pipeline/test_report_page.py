"""The page, from findings made by hand: no Spark."""

import html
import itertools
import re
import shlex
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from reaper.cli.main import main
from reaper.pipeline.analysis.answers import SHARES, choose_period
from reaper.pipeline.analysis.asking import QUESTIONS
from reaper.pipeline.analysis.scope import parse_instant
from reaper.pipeline.report import words
from reaper.pipeline.report.findings import Findings, tables_of
from reaper.pipeline.report.next_steps import next_steps
from reaper.pipeline.report.page import CONTENTS, write_page
from workers.protocol.errors import ConfigurationError

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
TABLES = tables_of({name: [] for name in QUESTIONS})
ABOUT: dict[str, Any] = {
    "lake": "/data/lake", "made_at": "2026-11-20T15:00:00+00:00", "groups": [], "events": 0, "first_ms": 0,
    "last_ms": 0, "period_ms": 60_000,
}  # fmt: skip


def _findings(**tables: list[dict[str, Any]]) -> Findings:
    about = {**ABOUT, "events": 10, "last_ms": 3_600_000}
    return Findings(about, {**{name: [] for name in TABLES}, **tables})


def _of(stream: str = "{orders}:journal", group: str = "billing", **columns: Any) -> dict[str, Any]:
    return {"stream": stream, "group": group, **columns}


def test_an_empty_lake_makes_a_page_with_every_section() -> None:
    page = write_page(Findings(ABOUT, {name: [] for name in TABLES}))
    assert [write for write in CONTENTS.values() if f'<section id="{write.__name__}">' not in page] == []
    assert "all groups, no events" in page


def test_what_is_in_none_of_the_figures_is_said_before_all_sections() -> None:
    findings = _findings(
        malformed=[_of(reason=f"no <field> {n}", entries=1_000) for n in range(5)],
        skewed=[{"stream": "{orders}:journal", "what": "instant", "events": 7},
                {"stream": "{mail}:journal", "what": "duration", "events": 3},
                {"stream": "{mail}:journal", "what": "group", "events": 2}],
    )  # fmt: skip
    page = write_page(findings)
    top = page[: page.index("<section")]
    assert "5,000 malformed entries" in top
    assert "no &lt;field&gt; 0; no &lt;field&gt; 1; no &lt;field&gt; 2; …." in top
    assert "7 events with a time before 2018, or more than a day after" in top
    assert "3 deliveries whose times are negative" in top
    assert "2 events of a group that do not name it are left out: mail." in top
    assert "doubt" not in write_page(_findings()).split("</style>")[1]


names = st.text(st.sampled_from('ab/_"· (\\u20\n\xa0\u202e\u200b'), min_size=1, max_size=5)
groups = st.tuples(names, names, st.one_of(st.just(""), names))


@given(groups, groups)
def test_no_two_groups_and_types_have_the_same_label(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    labels = [words.kind(_of("{%s}:journal" % stream, group, type=kind)) for stream, group, kind in (one, other)]  # noqa: UP031 - braces are part of the key
    seen = [" ".join(label.split()) for label in labels]  # as pages show them
    assert (seen[0] == seen[1]) == (one == other)
    assert all(label.isprintable() for label in labels)
    assert not labels[0].startswith("_")  # legends leave these out


def test_groups_that_were_written_alike_are_told_apart_in_charts() -> None:
    rows = [
        _of("{a/b}:journal", "c", cause="crash", starts=3, jobs=3),
        _of("{a}:journal", "b/c", cause="crash", starts=5, jobs=5),
    ]
    page = write_page(_findings(second_starts=rows))
    assert "&quot;a/b&quot;/c" in page
    assert "a/&quot;b/c&quot;" in page


def test_a_name_with_dollars_is_no_formula() -> None:
    rows = [_of(group="$x^$", cause="crash", starts=3, jobs=3)]
    assert "orders/$x^$" in write_page(_findings(second_starts=rows))


def test_nothing_on_the_page_comes_from_elsewhere() -> None:
    page = write_page(many_findings())
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"|url\((?!#)[^)]*\)|@import|<link|<iframe', page) == []
    assert re.findall(r"https?://(?!www\.w3\.org/)", page) == []


def test_a_page_about_much_stays_small_and_names_what_it_leaves_out() -> None:
    findings = many_findings()
    page = write_page(findings)
    assert len(page.encode()) < 1_000_000
    assert "the first 40 of 1,000; all are in the JSON file" in page


def test_a_page_stays_small_whatever_names_are_like_and_however_many_groups_have_advice() -> None:
    findings = many_findings()
    longest = "n" * 10_000
    group = {"stream": longest, "group": longest}
    others = ("worker", "job", "pattern", "frame", "verb", "of", "event", "mode", "reason", "type", "holder")
    texts = {*group, *others, "source_stream"}
    for rows in findings.tables.values():
        rows[:] = [row | dict.fromkeys(texts & row.keys(), longest) for row in rows]
    advised = {
        "group": f"{longest}/{longest}", "workers": "plain", "executions": 1, "longest_ms": 1,
        "in_force_ms": None, "timeout_ms": 1,
        "verdict": "recommended", "why": longest, "types": {longest: 1},
    }  # fmt: skip
    short = advised | {"group": "s/g", "why": "", "types": {}}
    findings.advice = {"promise": {"one_in": 1_000, "pause_ms": 5_000}, "groups": [*[short] * 2_000, *[advised] * 3]}
    findings.tables["malformed"] = [{"stream": longest, "reason": longest, "entries": 1}]
    findings.live = {"at": "now", "places": {}, "not_checked": 0,
                     "lost": [_of(job=longest, event="delivered", at_ms=1, n=1_000)] * 1_000}  # fmt: skip
    page = write_page(findings)
    assert len(page.encode()) < 1_000_000
    assert "n" * 1_001 not in page


def test_long_names_that_begin_alike_are_told_apart() -> None:
    one, other = ({"stream": "s", "group": "g" * 1_000 + end} for end in "ab")
    assert words.group(one) != words.group(other)
    assert len(words.group(one)) < 200


def many_findings() -> Findings:
    """Sixty groups, a thousand workers, two hundred terms, and long errors."""
    groups = [_of("{s%d}:journal" % n, f"g{n}") for n in range(60)]  # noqa: UP031 - braces are part of the key
    times = {"n": 1_000, "p50": 12, "p95": 340, "p99": 5_600, "p999": 78_000, "max": 90_000,
             "quantiles": [12 * n for n in range(len(SHARES))]}  # fmt: skip
    cause = {"mode": "reaper", "outcome": "recovered", "reason": "visibility_timeout"}
    return _findings(
        event_counts=[{**group, "event": "acked", "n": 9_999} for group in groups],
        over_time=[
            {
                **group, "period": n * 60_000, "deliveries": 60, "stalls": n % 7, "permille": n % 7 / 0.06,
                "acked": 50, "longest_wait_ms": n * 10 if n % 9 else None,
            }
            for group in groups
            for n in range(120)
        ],
        stalls_by_worker=[
            {**groups[n % 60], "worker": f"host-{n}", "processes": 1, "deliveries": 50, "stalls": 5, "permille": 100.0}
            for n in range(1_000)
        ],
        durations=[{**group, "type": "t", "measure": m, **times} for group in groups for m in ("wait", "run")],
        recovery_counts=[{**group, **cause, "recoveries": 1_000, "early": 1} for group in groups],
        recovery_times=[{**group, **cause, "measure": m, **times} for group in groups for m in ("overshoot", "wait")],
        recovery_sums=[{**group, "measure": m, **times} for group in groups for m in ("overshoot", "wait")],
        restarts=[{**group, "visibility_ms": 3_000, **times} for group in groups],
        duplicates=[{**group, "cause": "slow", "jobs": 70} for group in groups],
        unsettled=[{**groups[0], "event": "recovered", "jobs": 900}],
        unsettled_jobs=[
            {**groups[0], "job": f"17675928012{n:03}-{n}", "event": "recovered", "n": 900} for n in range(900)
        ],
        duplicate_jobs=[{**groups[n % 60], "job": f"{n}-0", "cause": "slow", "n": 70} for n in range(4_200)],
        second_starts=[{**group, "cause": "crash", "starts": 9, "jobs": 8} for group in groups],
        terms=[
            {
                **groups[n % 60], "token": n, "holder": f"r{n % 9}.abc@1500", "began_ms": n * 10_000,
                "ended_ms": None, "end": "expired", "gap_ms": None, "gap_at_most_ms": 1_500,
            }
            for n in range(200)
        ],
        dead_letter_clusters=[
            {
                "source_stream": "s", "group": "g", "reason": f"failed_{n}", "pattern": "E" * 400,
                "frame": "a.py:f", "n": 5, "redriven": 0, "first_ms": 1, "last_ms": 2, "id": "1-0", "job": "1-0",
                "error": "x" * 4_000, "traceback": "y" * 8_000, "consumers": "c", "deliveries": 3,
            }
            for n in range(200)
        ],
    )  # fmt: skip


def test_what_comes_from_outside_is_text_on_the_page() -> None:
    nasty = "</script><script>alert(1)</script>"
    worker = _of(group=nasty, worker=nasty, processes=1, deliveries=2, stalls=1, permille=500.0)
    page = write_page(_findings(stalls_by_worker=[worker]))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


# ---- the four questions


def test_jobs_that_were_lost_or_duplicated_are_named_the_first_fifty() -> None:
    twice = [_of(job=f"twice-{n:04}", cause="slow", n=60) for n in range(60)]
    findings = _findings(duplicates=[_of(cause="slow", jobs=60)], duplicate_jobs=twice)
    lost = [_of(job=f"lost-{n:04}", event="recovered", at_ms=1_000, n=70) for n in range(60)]
    findings.live = {"at": "now", "places": {"lost": 60}, "lost": lost, "not_checked": 0}
    findings.tables["unsettled_jobs"] = [_of(job=f"open-{n}", event="recovered", at_ms=1, n=70) for n in range(70)]
    shown = write_page(findings)
    assert re.findall(r"<code>twice-(\d+)", shown) == [f"{n:04}" for n in range(50)]
    assert re.findall(r"<code>lost-(\d+)", shown) == [f"{n:04}" for n in range(50)]
    assert shown.count(" and 10 more, in the JSON file") == 2


def test_the_worst_periods_are_named() -> None:
    common: dict[str, Any] = {"deliveries": 60, "permille": 0.0, "acked": 60}
    course = [
        _of(period=n * 60_000, stalls=n if n < 9 else 0, longest_wait_ms=1_000 * (100 - n), **common) for n in range(60)
    ]
    page = write_page(_findings(over_time=course))
    stalls, waits = page.split("The periods with the most stalled deliveries")[1].split("The periods with the longest")
    assert re.findall(r"1970-01-01 00:(\d\d):00", stalls) == ["08", "07", "06", "05", "04"]
    assert re.findall(r"1970-01-01 00:(\d\d):00", waits) == ["00", "01", "02", "03", "04"]


def test_the_tile_of_known_duplicates_says_what_a_journal_cannot_see() -> None:
    page = write_page(
        _findings(duplicates=[_of(cause="slow", jobs=2)], duplicate_jobs=[_of(job="1-0", cause="slow", n=2)])
    )
    for shown in (page, write_page(_findings())):
        (tile,) = re.findall(
            r'<div class="tile (\w*)"><b>(\d)</b><span>known duplicates</span><small>(.*?)</small>', shown
        )
        assert tile[:2] == (("warn", "2") if shown is page else ("", "0")), "none is no reason to be at ease"
        assert tile[2] == "Work that a worker did and could not report before it died is not in the journal."


def test_the_time_from_crash_to_second_start_is_seen_first() -> None:
    times: dict[str, Any] = {
        "n": 9,
        "p50": 3_100,
        "p95": 3_900,
        "p99": 4_100,
        "p999": 4_200,
        "max": 4_300,
        "visibility_ms": 3_000,
    }
    page = write_page(_findings(restarts=[_of(**times, quantiles=[3_100] * len(SHARES))]))
    assert '<div class="tile "><b>4.1 s</b><span>from crash to second start' in page


STEPS = [
    (
        {"unsettled": [_of(event="recovered", jobs=3)]},
        "3 jobs had no end",
        "reaper pipeline report --lake /data/lake --redis-url redis://127.0.0.1:6379/0",
    ),
    ({"recovery_counts": [_of(mode="reaper", recoveries=9, early=2)]}, "2 recoveries came before", "reaper doctor"),
    (
        {"second_starts": [_of(cause="slow", starts=3, jobs=2)]},
        "2 jobs of orders/billing ran longer",
        "reaper pipeline advise --lake /data/lake --group orders/billing",
    ),
    ({"second_starts": [_of(cause="late_settlement", starts=1, jobs=1)]}, "1 job of orders/billing", "reaper doctor"),
    (
        {"duplicates": [_of(cause="unexplained", jobs=1)],
         "duplicate_jobs": [_of(job="a b", cause="unexplained", n=1)]},
        "1 job of orders/billing ended twice",
        "reaper explain 'a b' --group orders/billing",
    ),
    (
        {
            "second_starts": [_of(cause="crash", starts=7, jobs=2)],
            "stalls_by_worker": [
                _of(worker="host-1", processes=1, deliveries=50, stalls=5, permille=100.0),
                _of("x", worker="x", stalls=0),
            ],
        },
        "7 deliveries of orders/billing stalled because a worker crashed. Most stalled in worker host-1 (5)",
        "reaper status --group orders/billing",
    ),
    (
        {"dead_letter_clusters": [{"source_stream": "s", "group": "g", "n": 2, "pattern": "E",
                                   "reason": "failed", "frame": "", "redriven": 0, "first_ms": 1, "last_ms": 2,
                                   "job": "1-0", "error": "E"}]},
        "2 dead letters of s/g had the same error: E.",
        "reaper dead-letters redrive s/g --reason failed --dry-run",
    ),
    ({"lost_payloads": [_of(entries=1)]}, "1 entry disappeared", "reaper doctor"),
    ({"skewed": [{"stream": "s", "what": "instant", "events": 4}]}, "4 events counted nowhere", "reaper doctor"),
    (
        {"terms": [_of(token=1, holder="r.a@1", began_ms=None, ended_ms=None, end="expired", gap_ms=None,
                       gap_at_most_ms=5)]},
        "1 lease expired",
        "reaper status",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tables", "finding", "command"), STEPS, ids=[step[1] for step in STEPS])
def test_every_finding_has_a_command(tables: dict[str, list[dict[str, Any]]], finding: str, command: str) -> None:
    findings = _findings(**tables)
    (step,) = next_steps(findings)
    assert step.finding.startswith(finding)
    assert step.command == command
    assert html.escape(command) in write_page(findings)
    words = shlex.split(command)[1:]
    known = CliRunner().invoke(main, [*_command_of(words), "--help"])
    assert known.exit_code == 0
    assert "COMMAND [ARGS]" not in known.output, "a group of commands does nothing"
    assert [word for word in words if word.startswith("--") and word not in known.output] == []


def _command_of(words: list[str]) -> list[str]:
    """Return the name of the command, without its options."""
    names = itertools.takewhile(lambda word: not word.startswith("-"), words)
    return [name for name in names if " " not in name and "/" not in name]


def test_a_lost_job_comes_first_and_no_finding_is_no_step() -> None:
    findings = _findings(recovery_counts=[_of(mode="reaper", recoveries=9, early=2)])
    findings.live = {"at": "now", "places": {"lost": 1}, "lost": [_of(job="j", event="acked", at_ms=1, n=1)],
                     "not_checked": 0}  # fmt: skip
    assert [step.command for step in next_steps(findings)] == [
        "reaper explain j --group orders/billing",
        "reaper doctor",
    ]
    assert next_steps(_findings()) == []
    assert "None: no finding of this report needs a command." in write_page(_findings())


def test_unsettled_jobs_are_unconfirmed_until_somebody_has_looked() -> None:
    job = _of(job="1-0", event="recovered", at_ms=1_000, last_entry="2-0", n=3)
    findings = _findings(unsettled=[_of(event="recovered", jobs=3)], unsettled_jobs=[job])
    assert "Whether any of them is lost is unconfirmed" in write_page(findings)
    findings.live = {"at": "now", "places": {"pending": 2, "lost": 1}, "lost": [job], "not_checked": 0}
    page = write_page(findings)
    assert "unconfirmed" not in page
    assert "lost: not in Redis" in page
    assert "jobs lost" in page


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-20", "2026-11-20T00:00:00+00:00"),
        ("2026-11-20T15:04", "2026-11-20T15:04:00+00:00"),
        ("2026-11-20T15:04:05+02:00", "2026-11-20T13:04:05+00:00"),
        ("36h", "2026-11-17T00:00:00+00:00"),
        ("2w", "2026-11-04T12:00:00+00:00"),
    ],
)
def test_instants_are_read(text: str, instant: str) -> None:
    assert parse_instant(text, NOW).isoformat() == instant


@pytest.mark.parametrize("text", ["yesterday", "36", "2026-13-01", "999999w"])
def test_what_is_no_instant_is_rejected_in_a_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{text!r} is not a time. Write 2026-11-20")):
        parse_instant(text, NOW)


@pytest.mark.parametrize(
    ("span_ms", "period_ms"),
    [(0, 1_000), (120_000, 1_000), (120_001, 2_000), (86_400_000, 1_800_000), (10**13, 365 * 86_400_000)],
)
def test_a_course_has_at_most_120_points(span_ms: int, period_ms: int) -> None:
    assert choose_period(span_ms) == period_ms


def test_durations_are_written_for_people() -> None:
    values = (None, 0, 7, 999, 1_000, 1_250, 59_990, 90_000, 7_200_000, 200_000_000)
    written = [words.duration(ms) for ms in values]
    assert written == [words.NOTHING, "0 ms", "7 ms", "999 ms", "1 s", "1.25 s", "60 s", "1.5 min", "2 h", "2.31 d"]
