"""The tables of the lake agree with the protocol that fills them."""

import re
from pathlib import Path

from pyspark.sql.types import StructType

from reaper.pipeline.lake.layout import TABLES as FOLDERS
from reaper.pipeline.lake.schema import DATA_COLUMNS, EVENTS, TABLES

IN_EXTRA = {"source", "until_ms"}
"""Rare facts about deletions, which are read from ``extra``."""
VALUES = {"timeout", "acked", "recovered", "delivered", "last_delivery", "not_released", "never_arrived"}
"""Named in the descriptions of keys, and no keys."""

PROTOCOL = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


def documented_keys() -> set[str]:
    """Return the keys of ``data`` that docs/protocol.md names."""
    section = PROTOCOL.read_text().split("## Lifecycle events")[1].split("\n## ")[0]
    common = re.search(r"Common keys:(.*?)\n\n", section, re.DOTALL)
    assert common
    columns = [line.split("|")[3] for line in section.splitlines() if line.startswith("| `")]
    text = re.sub(r"\([^)]*\)", "", common[1] + " ".join(columns))
    return set(re.findall(r"`(\w+)`", text))


def required(table: StructType) -> list[str]:
    return [field.name for field in table.fields if not field.nullable]


def test_every_documented_key_of_an_event_has_a_column() -> None:
    named = documented_keys()
    assert {"group", "run_ms", "new_entry", "token", "holder", "target"} <= named
    assert named - VALUES - set(DATA_COLUMNS) == IN_EXTRA


def test_tables_are_partitioned_by_date_and_know_where_each_row_is_from() -> None:
    assert tuple(TABLES) == FOLDERS
    assert required(EVENTS) == ["id", "stream", "at", "seq", "event", "date"]
    for table in TABLES.values():
        assert table.names[0:2] == ["id", "stream"]
        assert table.names[-1] == "date"
