"""docs/telemetry.md lists every span, attribute and metric that the code knows, and nothing else."""

import re

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.support.processes import ROOT
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.instruments import Gauge

PAGE = (ROOT / "docs/telemetry.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table behind a row of titles that begins with ``heading``."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_metric_is_listed_with_its_kind_and_unit() -> None:
    kinds = {"_ProxyCounter": "counter", "_ProxyHistogram": "histogram"}
    known = {
        (one._name, kinds[type(one).__name__], one._unit)
        for one in vars(instruments).values()
        if type(one).__name__ in kinds
    }
    known |= {(one.name, "gauge", one.unit) for one in vars(instruments).values() if isinstance(one, Gauge)}
    assert {(named(row[0])[0], row[1], named(row[2])[0]) for row in rows("metric")} == known


def test_every_attribute_is_listed() -> None:
    keys = {
        value
        for name, value in vars(telemetry).items()
        if name.isupper() and isinstance(value, str) and "." in value and "/" not in value
    }
    assert {named(row[0])[0] for row in rows("attribute")} == keys


def test_attributes_that_no_convention_knows_are_in_our_namespace() -> None:
    """If others begin with `app.`, their origin is unclear."""
    prefixes = {named(row[0])[0].partition(".")[0] for row in rows("attribute")}
    assert prefixes == {"messaging", "error", "reaper"}


def test_every_span_is_listed() -> None:
    ours = {telemetry.SEND, telemetry.PROCESS, telemetry.RECOVER}
    assert {name for row in rows("span") for name in named(row[0])} == ours


def test_labels_are_attributes_that_are_listed() -> None:
    listed = {named(row[0])[0] for row in rows("attribute")}
    assert {name for row in rows("metric") for name in named(row[3])} <= listed


def test_every_gauge_is_shown_while_it_is_looked_at() -> None:
    reader = InMemoryMetricReader()
    with_meter = instruments.Observations(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    ends = [with_meter.add(gauge, lambda: [(7, {"a": "b"})]) for gauge in instruments.GAUGES]

    def seen() -> set[str]:
        data = reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {metric.name for scope in scopes for metric in scope.metrics if metric.data.data_points}

    assert seen() == {gauge.name for gauge in instruments.GAUGES}
    for end in ends:
        end()
    assert seen() == set()
