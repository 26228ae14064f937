"""Generated journals: the same for the same seed, and told as real workers and replicas tell."""

from itertools import pairwise

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.lake.schema import DEAD_LETTERS, EVENTS
from reaper.pipeline.lake.tables import read_dead_letters, read_events
from tests.benchmarks.stories import STORIES, Story
from tests.benchmarks.synthetic import dead_letters, generate_lake, journal
from tests.benchmarks.synthetic_steps import KINDS
from tests.pipeline.conftest import Generated
from workers.protocol.errors import ConfigurationError

JOB = ("stream", "group", "job")
DELIVERY = (*JOB, "generation", "entry", "delivery")
STALLED = "event in ('recovered', 'quarantined', 'dead_lettered') and idle_ms is not null"
COMPLETED = "event = 'acked' or (event = 'rejected' and verb = 'ack')"
Fingerprint = tuple[int, int]
"""Of rows: how many, and a sum of their hashes."""

# ---- stories


def story(name: str) -> Story:
    return next(found for found in STORIES if found.name == name)


def told(name: str) -> list[tuple[str, int, int]]:
    return [(str(step.event), step.delivery, step.generation) for step in story(name).steps]


def test_stories_are_shares_of_a_million() -> None:
    assert sum(found.per_million for found in STORIES) == 1_000_000
    assert sum(kind.per_thousand for kind in KINDS) == 1_000


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("went well", [("acked", 1, 0)]),
        (
            "slow but alive",
            [
                ("recovered", 1, 0),
                ("rejected", 1, 0),
                ("acked", 2, 0),
            ],
        ),
        (
            "poison",
            [
                ("recovered", 1, 0),
                ("quarantined", 2, 0),
                ("recovered", 2, 0),
                ("dead_lettered", 3, 0),
            ],
        ),
        (
            "redriven",
            [
                ("dead_lettered", 1, 0),
                ("redriven", 0, 1),
                ("acked", 1, 1),
            ],
        ),
    ],
)
def test_a_story_is_told_as_it_happens(name: str, events: list[tuple[str, int, int]]) -> None:
    assert told(name) == events


# ---- journals


@pytest.fixture(scope="module")
def events(spark: SparkSession, generated: Generated) -> DataFrame:
    """The journal that lies in the lake."""
    return journal(spark, generated.jobs, generated.seed).localCheckpoint()


@pytest.fixture(scope="module")
def dead(spark: SparkSession, generated: Generated) -> DataFrame:
    return dead_letters(spark, generated.jobs, generated.seed).localCheckpoint()


@pytest.fixture(scope="module")
def printed(events: DataFrame) -> Fingerprint:
    return fingerprint(events)


def test_the_columns_are_those_of_the_lake(events: DataFrame, dead: DataFrame) -> None:
    for frame, schema in ((events, EVENTS), (dead, DEAD_LETTERS)):
        assert [(field.name, field.dataType) for field in frame.schema] == [
            (field.name, field.dataType) for field in schema
        ]
        required = [field.name for field in schema if not field.nullable]
        assert frame.where(" or ".join(f"{name} is null" for name in required)).count() == 0


def fingerprint(rows: DataFrame) -> Fingerprint:
    hashed = rows.select(F.xxhash64(*rows.columns).alias("h"))
    found = hashed.agg(F.count("*").alias("n"), F.sum(F.shiftright("h", 8)).alias("sum")).first()
    assert found
    return found["n"], found["sum"]


@pytest.mark.matrix
def test_the_same_seed_gives_the_same_rows_however_the_work_is_divided(
    spark: SparkSession, generated: Generated, printed: Fingerprint
) -> None:
    same, other = (
        fingerprint(journal(spark, generated.jobs, seed, files))
        for seed, files in ((generated.seed, 5), (generated.seed + 1, 2))
    )
    assert printed == same != other


def test_every_event_has_its_own_id_and_belongs_to_its_millisecond(events: DataFrame) -> None:
    checked = events.agg(
        F.count("*").alias("n"),
        F.countDistinct("stream", "id").alias("ids"),
        F.count_if(F.col("id") == F.concat_ws("-", F.unix_millis("at"), "seq")).alias("timed"),
        F.count_if(F.col("date") == F.to_date("at")).alias("dated"),
    ).first()
    assert checked
    assert checked["n"] == checked["ids"] == checked["timed"] == checked["dated"]


def test_jobs_lie_interleaved_in_order_of_time(events: DataFrame) -> None:
    first = [row["job"] for row in events.where(F.col("group") == "billing").limit(300).collect()]
    times = [row["at"] for row in events.where(F.col("group") == "billing").limit(300).collect()]
    assert times == sorted(times)
    runs = 1 + sum(before != after for before, after in pairwise(first))
    assert runs > len(set(first)), "some job has events on both sides of another's"


def jobs(events: DataFrame, condition: str) -> int:
    return events.where(condition).select(*JOB).distinct().count()


def test_what_befell_the_jobs_is_what_the_stories_say(events: DataFrame, dead: DataFrame, generated: Generated) -> None:
    ours = sum(kind.per_thousand for kind in KINDS if not kind.foreign) / 1_000
    per_million = {found.name: found.per_million for found in STORIES}

    def expected(*names: str, share: float = 1.0) -> object:
        number = sum(per_million[name] for name in names) * generated.jobs / 1e6 * share
        return pytest.approx(number, abs=4 * number**0.5 + 1)

    stalled = ("crashed", "slow but alive", "crashed twice", "poison")
    dying = ("failed for good", "rejected", "poison", "redriven")
    assert jobs(events, STALLED) == expected(*stalled)
    assert jobs(events, "event = 'rejected'") == expected("slow but alive", share=ours)
    assert jobs(events, "event = 'handed_back'") == expected("handed back", share=ours)
    assert jobs(events, "event = 'redriven'") == expected("redriven")
    # Of foreign jobs, only those that the replica gives up are told of.
    deaths = sum(per_million[name] for name in dying) * ours + per_million["poison"] * (1 - ours)
    assert dead.count() == pytest.approx(deaths * generated.jobs / 1e6, rel=0.4)


def test_jobs_that_were_only_slow_are_done_twice_and_all_others_once(events: DataFrame) -> None:
    done = events.where(COMPLETED).groupBy(*JOB, F.coalesce("generation", F.lit(0))).count()
    twice = done.where("count > 1").count()
    rejected = events.where("event = 'rejected'").count()
    assert (twice, done.where("count > 2").count()) == (rejected, 0)
    assert rejected > 0


def test_no_delivery_ends_twice_in_the_replicas_eyes(events: DataFrame) -> None:
    ends = events.where(f"{STALLED} or event = 'acked'").groupBy(*DELIVERY).count()
    assert ends.where("count > 1").count() == 0


def test_nothing_is_recovered_early(events: DataFrame) -> None:
    assert events.where(f"{STALLED} and idle_ms < visibility_ms").count() == 0


def test_every_dead_letter_is_told_of_in_the_journal(events: DataFrame, dead: DataFrame) -> None:
    told = events.where("event = 'dead_lettered'").select("group", F.col("dead_letter").alias("id"), "job", "error")
    kept = dead.select("group", "id", "job", "error")
    assert (told.exceptAll(kept).count(), kept.exceptAll(told).count()) == (0, 0)
    assert kept.count() > 0


# ---- lakes


def test_a_lake_is_written_as_ingestion_writes_it(
    spark: SparkSession, generated: Generated, printed: Fingerprint
) -> None:
    events, dead = read_events(spark, generated.path), read_dead_letters(spark, generated.path)
    assert events.count() == pytest.approx(generated.events, rel=0.05)
    assert fingerprint(events) == printed
    given_up = events.where("event = 'dead_lettered'").select(F.col("dead_letter").alias("id"))
    assert given_up.exceptAll(dead.select("id")).count() == 0
    with pytest.raises(ConfigurationError, match="is not empty"):
        generate_lake(spark, generated.path, events=1_000)
