"""Alerts and the dashboard query existing metrics, each alert is tried out, and each links to a fix."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import prometheus_rule
from tests.deploy.assets import DEPLOY, OVERLAYS, document, program
from tests.deploy.metrics import exposed, used
from tests.support.processes import ROOT

RULES: list[dict[str, Any]] = [
    rule for group in document(DEPLOY / "prometheus/alerts.yaml")["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/stream-reaper.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]

RUNBOOK = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
SITE = "https://docs.example.com/stream-reaper"
"""The base that users replace by the address of their documentation site (docs/deployment.md)."""

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def _variables() -> set[str]:
    return {f"${one['name']}" for one in DASHBOARD["templating"]["list"]} | {"$__rate_interval"}


# --- alerts -------------------------------------------------------------------------------------------------


@each_rule
def test_an_alert_asks_for_what_is_shown(rule: dict[str, Any]) -> None:
    names, _ = used(rule["expr"])
    assert names
    assert names <= exposed()


@each_rule
def test_an_alert_says_what_and_how_bad_and_leads_to_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{SITE}/runbook/#{rule['alert'].lower()}"
    section = re.search(rf"^## {rule['alert']}\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    assert section
    assert re.findall(r"\*\*(\w+)\b", section[1])[0] == "Meaning"
    assert all(f"**{part}" in section[1] for part in ("Impact", "Check", "Escalate")), "engineers on call need all"


def test_every_section_of_the_runbook_is_of_an_alert() -> None:
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_every_alert_has_an_example_that_fires_and_one_that_does_not() -> None:
    tried = [
        (one["alertname"], bool(one["exp_alerts"]))
        for test in document(DEPLOY / "prometheus/alerts_test.yaml")["tests"]
        for one in test["alert_rule_test"]
    ]
    assert set(tried) == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


def test_the_examples_hold() -> None:
    done = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", "alerts_test.yaml"],
        cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_command_puts_the_address_of_the_site_into_everything(tmp_path: Path) -> None:
    command = re.search(r"^grep -rl .*$", (ROOT / "docs/deployment.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert command
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    subprocess.run(["/bin/sh", "-ec", command[0].replace("YOUR-HOST", "docs.internal")], cwd=tmp_path, check=True)
    changed = [file.read_text(encoding="utf-8") for file in (tmp_path / "deploy").rglob("*.yaml")]
    assert not [text for text in changed if "docs.example.com" in text]
    assert sum("https://docs.internal/stream-reaper/runbook/#reapergone" in text for text in changed) == 3


def test_prometheus_takes_the_configuration() -> None:
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "config", "scrape.yaml"],
        cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_operator_gets_the_same_rules() -> None:
    assert prometheus_rule.FILE.read_text(encoding="utf-8") == prometheus_rule.document()
    assert (
        document(OVERLAYS / "monitoring/prometheus-rule.yaml")["spec"]["groups"]
        == document(DEPLOY / "prometheus/alerts.yaml")["groups"]
    )


# --- dashboard ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_panel_asks_for_what_is_shown(title: str, query: str) -> None:
    names, _ = used(re.sub(r"\$\w+", "", query))
    assert names, title
    assert names <= exposed()
    assert set(re.findall(r"\$\w+", query)) <= _variables()


def test_the_choices_are_asked_from_what_is_shown() -> None:
    queries = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    asked = [re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, \w+\)", query) for query in queries]
    assert {match[1] for match in asked if match} <= exposed()
    assert all(asked)


def test_every_gauge_of_ours_is_on_it_or_watched() -> None:
    asked = {name for _, query in QUERIES for name in used(re.sub(r"\$\w+", "", query))[0]}
    asked |= {name for rule in RULES for name in used(rule["expr"])[0]}
    gauges = {name for name in exposed() if name.startswith("reaper_") and not name.endswith(("_sum", "_count"))}
    assert gauges <= asked


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$\w+", "x", query.replace("$__rate_interval", "5m"))}
        for number, (_, query) in enumerate(QUERIES)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
