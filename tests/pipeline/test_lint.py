"""Rules that ruff has no word for."""

import ast
from collections.abc import Iterator
from pathlib import Path

PIPELINE = Path(__file__).resolve().parents[2] / "reaper" / "pipeline"
CLASSIC_ONLY = {"sparkContext", "_jvm", "_jsparkSession", "_jdf", "_sc", "rdd"}


def classic_only(source: str) -> Iterator[tuple[int, str]]:
    """Find what does not exist under Spark Connect."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in CLASSIC_ONLY:
            yield node.lineno, node.attr


def test_the_pipeline_uses_nothing_that_spark_connect_does_not_have() -> None:
    files = sorted(PIPELINE.rglob("*.py"))
    assert PIPELINE / "spark" / "session.py" in files
    assert {file.name: found for file in files if (found := list(classic_only(file.read_text())))} == {}


def test_the_rule_finds_what_it_is_for() -> None:
    assert sorted(classic_only("session.sparkContext.stop()\nframe.rdd")) == [(1, "sparkContext"), (2, "rdd")]
