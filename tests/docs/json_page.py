"""Reads the examples of `docs/json.md`, and compares what a command prints with its example: shape, not values."""

import json
import re
from functools import cache
from typing import Any

from tests.support.processes import ROOT

PAGE = ROOT / "docs/json.md"
MORE = "…"
"""A key that says: there are more, and they are not shown."""


@cache
def examples() -> dict[str, Any]:
    """Return the example of each command by its name (``reaper status``)."""
    found: dict[str, Any] = {}
    for name, text in re.findall(
        r"^### `([^`]+)`\n.*?```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        assert "\n### " not in text
        found[name] = json.loads(text)
    return found


def differences(example: Any, printed: Any, at: str = "") -> list[str]:
    """Return the places at which the output has another shape than the example.

    An example shows every key there is (unless it says ``…``), a value of each type, and an element of each list.
    """
    if printed is None:
        return []
    if isinstance(example, dict) and isinstance(printed, dict):
        return _of_objects(example, printed, at)
    if isinstance(example, list) and isinstance(printed, list):
        return _of_lists(example, printed, at)
    return [] if _kind(example) == _kind(printed) else [f"{at}: {printed!r} where the example has {example!r}"]


def _of_objects(example: dict[str, Any], printed: dict[str, Any], at: str) -> list[str]:
    shown = example.keys() - {MORE}
    found = [f"{at}.{key}: not there" for key in shown - printed.keys()]
    if MORE not in example:
        found += [f"{at}.{key}: not in the example" for key in printed.keys() - shown]
    for key in shown & printed.keys():
        found += differences(example[key], printed[key], f"{at}.{key}")
    return found


def _of_lists(example: list[Any], printed: list[Any], at: str) -> list[str]:
    """Compare each element with the one in its place, or with the last one that is shown."""
    if printed and not example:
        return [f"{at}: empty in the example"]
    return [
        one
        for number, item in enumerate(printed)
        for one in differences(example[min(number, len(example) - 1)], item, f"{at}[{number}]")
    ]


def _kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def check(name: str, printed: Any) -> None:
    """Fail where what ``name`` printed has not the shape of its example."""
    assert differences(examples()[name], printed) == []
