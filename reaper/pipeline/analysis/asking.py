"""Asks a lake. Every question is one SQL file in `questions`, and Spark runs it.

Questions read views (`views`). ``event`` is a view of the lake's table ``events``. Spark computes the other views once,
because several questions read each of them. They are small, or about the few jobs with a problem.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.analysis.answers import SHARES, Answers, LakeAnswers, Rows, choose_period
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.lake.tables import read_dead_letters, read_events, read_malformed

CHAINS: Sequence[Mapping[tuple[str, ...], tuple[str, ...]]] = (
    {
        ("story", "delivery"): ("recoveries", "restarts", "second_starts", "duplicate_jobs", "unsettled_jobs"),
        ("story",): ("terms", "dead_letter_clusters"),
    },
    {("activity",): ("activity_counts", "stalls_by_worker", "over_time"), ("story",): ("executions",)},
    {(): ("durations", "misdated", "malformed")},
)
"""Questions, by the views that they need. The questions of a chain run one after the other, and chains side by side."""
QUESTIONS = tuple(name for chain in CHAINS for names in chain.values() for name in names)

_EVENTS_A_PARTITION, _MOST_PARTITIONS = 2_000_000, 200
"""Events for each task after a shuffle, and the most tasks."""
_MANY_EVENTS = 40_000_000
"""From here on, troubled jobs may not fit into memory."""
_TUNING = {
    # Sums that check for an overflow take longer, and no sum of ours is near one.
    "spark.sql.ansi.enabled": "false",
    # Sorted rows would be aggregated in their order. Here SortAggregate always means an aggregate of strings.
    "spark.sql.execution.replaceHashWithSortAgg": "false",
    # A first, smaller table for each hash aggregate holds too few groups for these counts.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    # All events of a job are in one part, so its deliveries are.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # Java does not compile a longer method, and interprets it four times slower.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Spark derives more filters from those of a query. That takes longer than these filters save.
    "spark.sql.constraintPropagation.enabled": "false",
}


def read_tables(spark: SparkSession, lake: str) -> dict[str, DataFrame]:
    """Return the tables of a lake, by their names. Raises NoLakeError."""
    readers = {"events": read_events, "dead_letters": read_dead_letters, "malformed": read_malformed}
    return {name: read(spark, lake) for name, read in readers.items()}


class LakeQueries:
    """Asks about the tables of one lake (see `read_tables`). ``embedded`` means that Spark runs in this process."""

    def __init__(self, spark: SparkSession, tables: Mapping[str, DataFrame], scope: Scope, *, embedded: bool) -> None:
        self._spark = spark
        self._embedded = embedded
        self._kept: set[str] = set()
        self._computing: Mapping[str, Lock] = defaultdict(Lock)
        self._parameters: dict[str, Any] = {**scope.parameters(), "shares": F.array(*map(F.lit, SHARES))}
        for name, value in _TUNING.items():
            spark.conf.set(name, value)
        if embedded:
            # To plan a query anew after each of its stages takes longer than these stages do.
            spark.conf.set("spark.sql.adaptive.enabled", "false")
        for name, frame in tables.items():
            frame.createOrReplaceTempView(name)
        self.query("views", "event").createOrReplaceTempView("event")

    def ask(self, tell: Callable[[str], None], only: Collection[str] = QUESTIONS) -> LakeAnswers:
        """Ask the questions ``only``. ``tell`` is called with the progress. Raises errors of Spark."""
        tell("counting events")
        (extent,) = self._rows("extent")
        first_ms, last_ms, events = extent["first_ms"] or 0, extent["last_ms"] or 0, extent["events"]
        period_ms = self._parameters["period_ms"] = choose_period(last_ms - first_ms)
        if self._spark.conf.get("spark.sql.shuffle.partitions") == str(_MOST_PARTITIONS):  # it is still ours
            partitions = min(_MOST_PARTITIONS, 1 + events // _EVENTS_A_PARTITION)
            self._spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        self._spark.conf.set("spark.sql.optimizer.disableHints", str(events > _MANY_EVENTS).lower())
        answers: Answers = {}
        with ThreadPoolExecutor(len(CHAINS)) as threads:
            chains = [threads.submit(self._ask_chain, chain, only, answers, tell) for chain in CHAINS]
        for chain in chains:
            chain.result()
        return LakeAnswers(answers, first_ms, last_ms, events, period_ms)

    def _ask_chain(
        self,
        chain: Mapping[tuple[str, ...], tuple[str, ...]],
        only: Collection[str],
        answers: Answers,
        tell: Callable[[str], None],
    ) -> None:
        for views, names in chain.items():
            wanted = [name for name in names if name in only]
            for view in views if wanted else ():
                with self._computing[view]:  # another chain may need it at the same time
                    if view not in self._kept:
                        tell(f"computing {view}")
                        self.keep(view)
            for name in wanted:
                tell(f"asking: {name.replace('_', ' ')}")
                answers[name] = self._rows(name)

    def keep(self, view: str) -> DataFrame:
        """Compute a view once for all questions, and return it.

        A checkpoint cuts the plan off, because planning is most of the cost of a small question. It is lost with the
        process that holds it, so elsewhere Spark keeps the plan as well.
        """
        frame = self.query("views", view)
        kept = frame.localCheckpoint() if self._embedded else frame.persist()
        kept.createOrReplaceTempView(view)
        self._kept.add(view)
        return kept

    def query(self, folder: str, name: str) -> DataFrame:
        """Return what a SQL file selects. ``folder`` is questions or views."""
        text = (files("reaper.pipeline.analysis") / folder / f"{name}.sql").read_text(encoding="utf-8")
        if self._spark.conf.get("spark.sql.shuffle.partitions") == "1":
            # One task that reads all events takes less CPU time than a shuffle to one task.
            text = text.replace("REPARTITION(job_hash)", "COALESCE(1)")
        return self._spark.sql(text, args={key: value for key, value in self._parameters.items() if f":{key}" in text})

    def _rows(self, question: str) -> Rows:
        return [row.asDict(recursive=True) for row in self.query("questions", question).collect()]
