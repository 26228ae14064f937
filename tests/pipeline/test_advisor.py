"""The advisor on a lake: the result of its query, and the command."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from reaper.pipeline.advice.command import chosen
from reaper.pipeline.advice.executions import records_of
from reaper.pipeline.advice.timeouts import GroupRecord, Promise, Workers, advise
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.cli import pipeline
from tests.docs.json_page import check
from tests.pipeline import stories
from tests.pipeline.conftest import Generated
from tests.pipeline.questions import ask
from tests.pipeline.stories import Row, about, acked, event, nacked, recovered, rejected
from workers.protocol.errors import ConfigurationError

NOW = 1_700_000_000_000


def of(group: str, rows: Sequence[Row]) -> list[Row]:
    """The same rows, of another group."""
    return [row | {"group": group} for row in rows]


def delivery(job: int, number: int = 1, consumer: str = "") -> Row:
    return about(str(NOW + job), number) | ({"consumer": consumer} if consumer else {})


def read(spark: SparkSession, rows: Sequence[Row], workers: Workers | None = None) -> list[GroupRecord]:
    return records_of(ask(spark, ("executions",), Scope(datetime.now(UTC)), events=rows).answers["executions"], workers)


def test_everything_that_is_known_about_each_group_is_counted(spark: SparkSession) -> None:
    ours = [
        acked(NOW + 10_500, 400, delivery(10_000), type="mail"),
        acked(NOW + 12_000, 1_000, delivery(11_000), type="report"),
        nacked(NOW + 13_100, 100, delivery(13_000), type="mail", new_entry="13100-0"),
        event("handed_back", NOW + 14_000, run_ms=20, delivered_ms=NOW + 10_000, **delivery(14_000)),
        recovered(NOW + 20_000, 3_000, delivery(15_000), "20000"),
        recovered(NOW + 30_000, 3_000, delivery(16_000), "30000"),
        # It was alive. It was delivered at 27,500 and settled, too late, at 31,500.
        rejected(NOW + 31_500, 4_000, delivery(16_000)) | {"type": "report"},
    ]
    plain = [
        acked(NOW + 10_500, 400, delivery(10_000)),
        recovered(NOW + 20_000, 5_000, delivery(15_000, consumer="other"), visibility_ms=5_000),
        recovered(NOW + 21_000, 4_000, delivery(16_000, 2), visibility_ms=4_000),
    ]
    # No duration, no group, no instant: a wrong clock, or not our journal.
    nothing = [
        acked(NOW, 10**12, delivery(1)),
        acked(5, 100, about("5", 1)),
        acked(NOW + 10**13, 100, about("6", 1)),
        acked(NOW, 100, delivery(1), group=None),
        recovered(NOW + 22_000, -1, delivery(17_000, 2)),
    ]
    found = read(spark, [*ours, *of("mixed", plain), *nothing])
    mail, report = Counter({400.0: 1, 100.0: 1}), Counter({1_000.0: 1, 4_000.0: 1})
    assert found == [
        GroupRecord(
            stream=stories.JOURNAL,
            group="billing",
            workers=Workers.EXTENDING,
            durations=mail + report,
            by_type={"mail": mail, "report": report},
            cut_off=1,
            in_force_ms=stories.VISIBILITY_MS,
        ),
        GroupRecord(
            stream=stories.JOURNAL,
            group="mixed",
            workers=Workers.PLAIN,
            durations=Counter({400.0: 1, math.inf: 1}),
            by_type={"": Counter({400.0: 1})},
            cut_off=1,
            in_force_ms=4_000,  # the later one
        ),
    ]


def test_a_name_with_a_point_is_not_yet_one_of_our_workers(spark: SparkSession) -> None:
    rows = [acked(NOW + 10_500, 400, delivery(10_000, consumer="app.eu-central-1"))]
    assert [found.workers for found in read(spark, rows)] == [Workers.PLAIN]


def test_durations_of_about_the_same_length_are_counted_as_the_longest_of_them(spark: SparkSession) -> None:
    rows = [acked(NOW + 10_000, ms, delivery(ms)) for ms in (0, 1, 1_000, 1_010, 2_000)]
    (found,) = read(spark, rows, Workers.PLAIN)
    assert (found.workers, found.durations) == (Workers.PLAIN, Counter({1.0: 2, 1_010.0: 2, 2_000.0: 1}))


def test_one_group_is_chosen_by_its_name() -> None:
    groups = [
        advise(
            GroupRecord(stream=f"{{{stream}}}:journal", group=group, workers=Workers.PLAIN, durations=Counter()),
            Promise(),
        )
        for stream, group in (("a/b", "c"), ("a", "c"))
    ]
    assert list(chosen(groups, None)) == groups
    assert list(chosen(groups, "a/b/c")) == groups[:1]
    with pytest.raises(ConfigurationError, match="group 'a/d' is not in the lake: it has a/b/c, a/c"):
        chosen(groups, "a/d")
    with pytest.raises(ConfigurationError, match="the lake has no executions"):
        chosen([], None)


# ---- the command


@pytest.fixture(scope="module")
def lake(generated: Generated) -> Path:
    return generated.path


def test_the_command_recommends_in_two_lines_a_group(lake: Path) -> None:
    done = CliRunner().invoke(pipeline, ["advise", "--lake", str(lake)])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("mail/sender: visibility timeout "))
    assert lines[place + 1].startswith("  ")


def test_the_command_recommends_for_one_group_as_json(lake: Path) -> None:
    words = [
        "advise",
        "--lake",
        str(lake),
        "--group",
        "mail/sender",
        "-o",
        "json",
        "--pause",
        "20",
        "--workers",
        "plain",
    ]
    done = CliRunner().invoke(pipeline, [*words, "--one-in", "100"])
    assert done.exit_code == 0, done.output
    check("reaper pipeline advise", json.loads(done.stdout))
    (told,) = json.loads(done.stdout)["groups"]
    assert (told["workers"], told["verdict"], told["timeout_ms"]) == ("plain", "recommended", 30_000)
    assert told["executions"] > 1_000


def test_a_group_that_is_not_there_is_a_sentence(lake: Path) -> None:
    done = CliRunner().invoke(pipeline, ["advise", "--lake", str(lake), "--group", "mail/nobody"])
    assert done.exit_code == 1
    assert "group 'mail/nobody' is not in the lake" in done.stderr
