"""The tree that a drill prints of a recovered job's trace."""

import re

from reaper.drill.otlp import ReceivedLink, ReceivedSpan
from reaper.drill.tracing import as_tree, recovered_trace

MS = 1_000_000


def a_span(
    operation: str,
    span_id: str,
    parent_id: str = "",
    *,
    at: int,
    links: str = "",
    trace_id: str = "t",
    **attributes: object,
) -> ReceivedSpan:
    return ReceivedSpan(
        service="worker",
        name=f"{operation} orders",
        kind="CLIENT",
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        start_ns=at * MS,
        end_ns=(at + 1) * MS,
        failed=False,
        attributes={
            "messaging.operation.name": operation,
            **{name.replace("_", "."): value for name, value in attributes.items()},
        },
        links=tuple(ReceivedLink(link[0], link[2], {}) for link in links.split()),
    )


STORY = [
    a_span("send", "a", at=100),
    a_span("process", "b", "a", at=101, reaper_delivery=1, reaper_synthesized=True, error_type="visibility_timeout"),
    a_span("recover", "c", "a", at=110, links="t/b"),
    a_span("receive", "d", at=111, trace_id="u", links="t/a"),
    a_span("process", "e", "a", at=112, reaper_delivery=2, links="t/b t/c u/d"),
    a_span("ack", "f", "e", at=114),
]
QUIET = [
    a_span("send", "g", at=1, trace_id="v"),
    a_span("process", "h", "g", at=2, trace_id="v", reaper_delivery=1),
]


def test_the_first_job_that_was_recovered_and_acknowledged_is_chosen_with_the_reads_it_links() -> None:
    later = [
        a_span(span.name.split()[0], span.span_id * 2, at=999, trace_id="w") for span in STORY if span.trace_id == "t"
    ]
    assert recovered_trace([*later, *QUIET, *reversed(STORY)]) == STORY


def test_no_trace_is_chosen_where_nothing_was_recovered() -> None:
    assert recovered_trace([*QUIET, *STORY[:4]]) == []


def test_the_tree_shows_what_is_part_of_what_and_what_is_linked() -> None:
    lines = [re.split(r"  +", line.strip()) for line in as_tree(STORY).splitlines()]
    lost, again = "process (attempt 1, lost)", "process (attempt 2)"
    assert lines == [
        ["send", "0.0 …", "1.0 ms", "by worker"],
        [f"├─ {lost}", "1.0 …", "2.0 ms", "by worker", "error: visibility_timeout"],
        ["├─ recover", "10.0 …", "11.0 ms", "by worker", f"links: {lost}"],
        [f"└─ {again}", "12.0 …", "13.0 ms", "by worker", f"links: {lost}, recover, receive"],
        ["└─ ack", "14.0 …", "15.0 ms", "by worker"],
        ["receive", "11.0 …", "12.0 ms", "by worker", "links: send"],
    ]
