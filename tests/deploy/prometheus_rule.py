"""Makes the PrometheusRule of the alert rules: ``python -m tests.deploy.prometheus_rule``. kustomize cannot."""

from tests.support.processes import ROOT

RULES = ROOT / "deploy/prometheus/alerts.yaml"
FILE = ROOT / "deploy/kubernetes/overlays/monitoring/prometheus-rule.yaml"
_HEAD = """\
# Made of deploy/prometheus/alerts.yaml by `python -m tests.deploy.prometheus_rule`. Do not edit by hand.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: stream-reaper
spec:
"""


def document() -> str:
    """Return the rules, as they are, under ``spec``."""
    _, groups, rest = RULES.read_text(encoding="utf-8").partition("groups:\n")
    lines = (groups + rest).splitlines()
    return _HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
