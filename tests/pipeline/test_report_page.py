"""The page, from findings made by hand: no Spark."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reaper.pipeline.report.queries import choose_period
from reaper.pipeline.report.scope import parse_instant

from reaper.pipeline.report import words
from reaper.pipeline.report.findings import Findings
from reaper.pipeline.report.page import CONTENTS, write_page
from workers.protocol.errors import ConfigurationError

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
TABLES = (
    "extents", "event_counts", "foreign_groups", "deliveries_until_done", "stalls_by_worker", "stalls_over_time",
    "durations", "duration_curves", "scanned_durations", "recovery_counts", "recovery_times", "recovery_curves",
    "second_starts", "duplicates", "duplicate_jobs", "unsettled", "unsettled_jobs", "lost_payloads", "refused_writes",
    "terms", "malformed", "skewed", "dead_letter_clusters",
)  # fmt: skip
ABOUT: dict[str, Any] = {
    "lake": "/data/lake", "made_at": "2026-11-20T15:00:00+00:00", "groups": [], "events": 0, "first_ms": 0,
    "last_ms": 0, "period_ms": 60_000, "unanswered": {},
}  # fmt: skip


def _findings(**tables: list[dict[str, Any]]) -> Findings:
    about = {**ABOUT, "events": 10, "last_ms": 3_600_000}
    return Findings(about, {**{name: [] for name in TABLES}, **tables})


def _of(stream: str = "{orders}:journal", group: str = "billing", **columns: Any) -> dict[str, Any]:
    return {"stream": stream, "group": group, **columns}


def _embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="findings">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_an_empty_lake_makes_a_page_with_every_section() -> None:
    page = write_page(Findings(ABOUT, {name: [] for name in TABLES}))
    assert [name for name in CONTENTS if f'<section id="{name}">' not in page] == []
    assert "all groups, no events" in page


def test_what_is_in_none_of_the_figures_is_said_before_all_sections() -> None:
    findings = _findings(
        malformed=[_of(reason=f"no <field> {n}", entries=1_000) for n in range(5)],
        skewed=[{"stream": "{orders}:journal", "what": "instant", "events": 7},
                {"stream": "{mail}:journal", "what": "duration", "events": 3},
                {"stream": "{mail}:journal", "what": "group", "events": 2}],
    )  # fmt: skip
    findings.about["unanswered"] = {"second_starts": "[CANNOT_OPEN_SOCKET] timed out"}
    page = write_page(findings)
    top = page[: page.index("<section")]
    assert "5,000 entries that nobody can read" in top
    assert "no &lt;field&gt; 0; no &lt;field&gt; 1; no &lt;field&gt; 2; …." in top
    assert "7 events that claim to be from before 2018, or later" in top
    assert "3 deliveries whose times are negative" in top
    assert "2 events of groups that do not say of which are put aside: mail." in top
    assert "Spark did not answer second starts: what rests on it is missing ([CANNOT_OPEN_SOCKET] timed out)" in top
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
    embedded = _embedded(page)
    course = findings.tables["stalls_over_time"]
    kept = embedded["tables"]["stalls_over_time"]
    assert kept == course[: len(kept)]
    assert embedded["rows_left_out"]["stalls_over_time"] == len(course) - len(kept)
    assert "the first 40 of 1,000; all are in the JSON file" in page


def test_a_page_stays_small_whatever_names_are_like_and_however_many_groups_have_advice() -> None:
    findings = many_findings()
    longest = "n" * 10_000
    group = {"stream": longest, "group": longest}
    others = ("worker", "job", "pattern", "frame", "verb", "of", "event", "mode", "reason", "type", "holder")
    texts = {*group, *others, "source_stream"}
    for rows in findings.tables.values():
        rows[:] = [row | dict.fromkeys(texts & row.keys(), longest) for row in rows]
    cost = {"timeout_ms": 1, "total_s": 1.0}
    advised = {
        **group, "workers": "extending", "deliveries": 1, "crashes": 0, "rules": {}, "notes": [longest],
        "recommended": cost, "verdict": longest, "interval": {"timeout_ms": [1, 2], "cost_s": [1, 2]}, "curve": [cost],
        "types": {},
    }  # fmt: skip
    short = advised | {"stream": "s", "group": "g", "notes": [], "verdict": ""}
    findings.advice = {"groups": [*[short] * 2_000, *[advised] * 3]}
    findings.settings = "# why\n\n" + "[[groups]]\nvisibility_timeout = 1\n\n" * 20_000
    findings.tables["foreign_groups"] = [_of("{s%d}:journal" % n) for n in range(5_000)]  # noqa: UP031
    findings.tables["malformed"] = [{"stream": longest, "reason": longest, "entries": 1}]
    findings.live = {"at": "now", "places": {}, "not_checked": 0,
                     "lost": [_of(job=longest, event="delivered", at_ms=1)] * 1_000}  # fmt: skip
    page = write_page(findings)
    assert len(page.encode()) < 1_000_000
    assert "n" * 1_001 not in page.partition('<script type="application/json"')[0]
    left_out = _embedded(page)["rows_left_out"]
    assert left_out["lost"] == 999
    assert left_out["advice"] > 3
    assert "reaper pipeline advise writes that of all" in page
    assert "and 4,960 more" in page
    settings = re.findall(r"visibility_timeout = 1\n\n?</code>", page)
    assert settings, "it ends with a whole group"


def test_long_names_that_begin_alike_are_told_apart() -> None:
    one, other = ({"stream": "s", "group": "g" * 1_000 + end} for end in "ab")
    assert words.pair(one) != words.pair(other)
    assert len(words.pair(one)) < 200


def many_findings() -> Findings:
    """Sixty groups, a thousand workers, two hundred terms, and long errors."""
    groups = [_of("{s%d}:journal" % n, f"g{n}") for n in range(60)]  # noqa: UP031 - braces are part of the key
    times = {"n": 1_000, "p50": 12, "p95": 340, "p99": 5_600, "p999": 78_000, "max": 90_000}
    cause = {"mode": "reaper", "outcome": "recovered", "reason": "visibility_timeout"}
    bins = [round(10 ** (exponent / 20), 3) for exponent in range(100)]
    return _findings(
        event_counts=[{**group, "event": "acked", "n": 9_999} for group in groups],
        stalls_over_time=[
            {**group, "period": n * 60_000, "deliveries": 60, "stalls": n % 7, "permille": n % 7 / 0.06}
            for group in groups
            for n in range(120)
        ],
        stalls_by_worker=[
            {**groups[n % 60], "worker": f"host-{n}", "processes": 1, "deliveries": 50, "stalls": 5, "permille": 100.0}
            for n in range(1_000)
        ],
        durations=[{**group, "type": "t", "measure": m, **times} for group in groups for m in ("wait", "run")],
        duration_curves=[
            {**group, "type": "t", "measure": m, "below": below, "n": 3}
            for group in groups
            for m in ("wait", "run")
            for below in bins
        ],
        recovery_counts=[{**group, **cause, "recoveries": 1_000, "early": 1} for group in groups],
        recovery_times=[{**group, **cause, "measure": m, **times} for group in groups for m in ("overshoot", "wait")],
        second_starts=[{**group, "cause": "crash", "starts": 9, "jobs": 8} for group in groups],
        terms=[
            {
                "stream": "{reaper}:journal", "token": n, "holder": f"r{n % 9}.abc@1500", "began_ms": n * 10_000,
                "ended_ms": None, "end": "vanished", "reason": None, "gap_ms": None, "gap_at_most_ms": 1_500,
            }
            for n in range(200)
        ],
        dead_letter_clusters=[
            {
                "source_stream": "s", "group": "g", "signature": f"{n:012x}", "reason": "failed", "pattern": "E" * 400,
                "frame": "a.py:f", "n": 5, "redriven": 0, "first_ms": 1, "last_ms": 2, "id": "1-0", "job": "1-0",
                "error": "x" * 4_000, "traceback": "y" * 8_000, "consumers": "c", "deliveries": 3,
            }
            for n in range(200)
        ],
    )  # fmt: skip


def test_what_comes_from_outside_is_text_on_the_page_and_in_its_json() -> None:
    nasty = "</script><script>alert(1)</script>"
    worker = _of(group=nasty, worker=nasty, processes=1, deliveries=2, stalls=1, permille=500.0)
    page = write_page(_findings(stalls_by_worker=[worker]))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert _embedded(page)["tables"]["stalls_by_worker"][0]["worker"] == nasty


def test_unsettled_jobs_are_unconfirmed_until_somebody_has_looked() -> None:
    job = _of(job="1-0", event="recovered", at_ms=1_000, last_entry="2-0")
    findings = _findings(unsettled=[_of(event="recovered", jobs=3)], unsettled_jobs=[job])
    assert "Whether any of them is lost is unconfirmed" in write_page(findings)
    findings.live = {"at": "now", "places": {"pending": 2, "missing": 1}, "lost": [job], "not_checked": 0}
    page = write_page(findings)
    assert "unconfirmed" not in page.split("<script")[0]
    assert "lost: nowhere in Redis" in page
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
def test_what_is_no_instant_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{text!r} is no time: write 2026-11-20")):
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
