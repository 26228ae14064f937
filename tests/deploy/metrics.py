"""Which metrics Prometheus sees, by the instruments' names and kinds; and which of them expressions use."""

import re
from collections.abc import Iterator

from workers.telemetry import instruments
from workers.telemetry.instruments import Gauge

OF_THE_PROCESS = {"target_info", "process_resident_memory_bytes"}
"""What the exporter adds to ours."""
OF_PROMETHEUS = {"namespace", "instance", "job"}
"""Labels that come with scraping."""
_WORDS = {
    "and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool", "absent",
    "changes", "clamp_min", "count", "group", "histogram_quantile", "increase", "max", "min", "min_over_time",
    "present_over_time", "rate", "sum",
}  # fmt: skip


def exposed() -> set[str]:
    """Return the names under which each instrument is shown."""
    found: set[str] = set(OF_THE_PROCESS)
    for one in vars(instruments).values():
        if isinstance(one, Gauge):
            kind = "gauge"
            found |= _exposed(one.name, one.unit, kind)
        elif type(one).__name__ in ("_ProxyCounter", "_ProxyHistogram"):
            found |= _exposed(one._name, one._unit, type(one).__name__.removeprefix("_Proxy").lower())
    return found


def _exposed(name: str, unit: str, kind: str) -> set[str]:
    base = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
    endings = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}[kind]
    return {base + ending for ending in endings}


def used(expression: str) -> tuple[set[str], set[str]]:
    """Return the names of the metrics and of the labels that an expression of PromQL uses."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"\"", bare))
    for listed in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", bare):
        labels |= {label.strip() for label in listed.split(",") if label.strip()}
    without = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    names = set(re.findall(r"\b[a-z_]\w*", without)) - _WORDS
    return names, labels


def scraped(text: str) -> Iterator[tuple[str, set[str]]]:
    """Return each series' name and labels of a page of metrics."""
    for line in text.splitlines():
        match = re.match(r"([a-z_]\w*)(?:\{(.*)\})? ", line)
        if match:
            yield match[1], set(re.findall(r'(\w+)="', match[2] or ""))
