"""Asks a lake: every question is one SQL file in `questions`, and Spark runs it.

Questions read views (`views`). ``event`` is a view of the lake's table ``events``. The others are computed once and
kept, because several questions read each of them: they are small, or about the few jobs that have a story.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.operations.signatures import FRAME, MASKS, PATTERN_LENGTH, SIGNATURE_LENGTH
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.spark.collecting import collect_rows

Row = dict[str, Any]
Rows = list[Row]
Answers = dict[str, Rows]
"""Rows of each question, by its name, in no order unless the question says so."""
Tell = Callable[[str], None]

SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9995,
          0.9999)  # fmt: skip
"""Shares of the ``quantiles`` of an answer, ascending. A quantile is by nearest rank: a value that occurred."""

CHAINS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("story", "delivery"): ("recoveries", "restarts", "second_starts", "duplicate_jobs", "unsettled_jobs"),
    ("activity",): ("activity_counts", "stalls_by_worker", "over_time"),
    (): ("durations", "misdated", "malformed"),
    ("rare",): ("terms", "scanned_ages", "timeouts_in_force", "dead_letter_clusters"),
}
"""Questions, by the views that are computed for them, one after the other. Chains run side by side."""
QUESTIONS = tuple(name for names in CHAINS.values() for name in names)

_PERIODS_MS = [unit * n for unit, ns in (
    (1_000, (1, 2, 5, 10, 30)), (60_000, (1, 2, 5, 10, 30)), (3_600_000, (1, 2, 6, 12)), (86_400_000, (1, 7, 30, 365)),
) for n in ns]  # fmt: skip
MOST_PERIODS = 120
"""Points of a course over time."""
_FEW_EVENTS, _MANY_EVENTS = 2_000_000, 40_000_000
"""Up to the first, one task does what follows a shuffle. From the second on, troubled jobs may not fit into memory."""
_UNCHANGED_PARTITIONS = "200"
_MASK_NAMES = ("uuid", "quoted", "double_quoted", "url", "path", "hex", "digest", "number", "blanks")


def choose_period(span_ms: int) -> int:
    """Return how long a point of a course over time lasts, in ms."""
    return next((period for period in _PERIODS_MS if span_ms <= period * MOST_PERIODS), _PERIODS_MS[-1])


@dataclass(frozen=True)
class Asked:
    """What a lake has answered."""

    answers: Answers
    """A question that Spark did not answer has no rows."""
    unanswered: Mapping[str, str]
    """Why Spark did not answer a question, by its name."""
    first_ms: int
    last_ms: int
    """From when until when something happened; 0 if nothing did."""
    events: int
    period_ms: int
    """How long a point of a course over time lasts."""


class Asker:
    """Asks about the tables of one lake, as `lake.tables.read_tables` returns them. Used once."""

    def __init__(self, spark: SparkSession, tables: Mapping[str, DataFrame], scope: Scope, *, embedded: bool) -> None:
        self._spark = spark
        self._embedded = embedded
        self._parameters: dict[str, Any] = {
            **scope.parameters(),
            "shares": F.array(*map(F.lit, SHARES)),
            **{name: expression for name, (expression, _) in zip(_MASK_NAMES, MASKS, strict=True)},
            "frame": FRAME,
            "pattern_length": PATTERN_LENGTH,
            "signature_length": SIGNATURE_LENGTH,
        }
        for name, frame in tables.items():
            frame.createOrReplaceTempView(name)
        self._tune()
        self.query("views", "event").createOrReplaceTempView("event")

    def query(self, folder: str, name: str) -> DataFrame:
        """Return what a SQL file of ``folder`` selects."""
        text = (files("reaper.pipeline.analysis") / folder / f"{name}.sql").read_text(encoding="utf-8")
        return self._spark.sql(text, args={key: value for key, value in self._parameters.items() if f":{key}" in text})

    def ask(self, tell: Tell, only: Collection[str] = QUESTIONS) -> Asked:
        """Ask questions, all unless ``only`` names some. ``tell`` hears how far it is."""
        tell("counting events")
        first_ms, last_ms, events = self._extent
        self._parameters["period_ms"] = choose_period(last_ms - first_ms)
        if self._embedded and self._spark.conf.get("spark.sql.shuffle.partitions") == _UNCHANGED_PARTITIONS:
            self._spark.conf.set("spark.sql.shuffle.partitions", "1" if events <= _FEW_EVENTS else "4")
        self._spark.conf.set("spark.sql.optimizer.disableHints", str(events > _MANY_EVENTS).lower())
        answers: Answers = {}
        unanswered: dict[str, str] = {}
        chains = {views: [name for name in names if name in only] for views, names in CHAINS.items()}
        with ThreadPoolExecutor(len(chains)) as threads:
            running = [
                threads.submit(self._ask_chain, views, names, answers, unanswered, tell)
                for views, names in chains.items()
                if names
            ]
        for chain in running:
            chain.result()
        return Asked(answers, unanswered, first_ms, last_ms, events, self._parameters["period_ms"])

    def _ask_chain(
        self, views: tuple[str, ...], names: list[str], answers: Answers, unanswered: dict[str, str], tell: Tell
    ) -> None:
        try:
            for view in views:
                tell(f"computing {view}")
                self._keep(view)
        except _FAILURES as error:
            unanswered |= dict.fromkeys(names, _reason(error))
        for name in names:
            answers[name] = []
            if name not in unanswered:
                tell(f"asking: {name.replace('_', ' ')}")
                try:
                    answers[name] = collect_rows(self.query("questions", name))
                except _FAILURES as error:
                    unanswered[name] = _reason(error)

    def _keep(self, view: str) -> None:
        """Compute a view once for all questions.

        A checkpoint cuts the plan off, and planning is most of what a small question costs. It is lost with the process
        that holds it, so elsewhere Spark keeps the plan as well.
        """
        frame = self.query("views", view)
        kept = frame.localCheckpoint() if self._embedded else frame.persist()
        kept.createOrReplaceTempView(view)

    @cached_property
    def _extent(self) -> tuple[int, int, int]:
        (row,) = collect_rows(self.query("questions", "extent"))
        return row["first_ms"] or 0, row["last_ms"] or 0, row["events"]

    def _tune(self) -> None:
        """Set what these questions are quickest with."""
        settings = {
            # Sorted rows would be aggregated in their order. Here SortAggregate always means an aggregate of strings.
            "spark.sql.execution.replaceHashWithSortAgg": "false",
            # A first, smaller table for each hash aggregate holds too few groups for what is counted here.
            "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
            # All events of a job are in one part, so its deliveries are.
            "spark.sql.requireAllClusterKeysForCoPartition": "false",
            # Java does not compile a longer method, and interprets it four times slower.
            "spark.sql.codegen.hugeMethodLimit": "8000",
        }
        if self._embedded:
            # To plan a query anew after each of its stages takes longer than these stages do.
            settings["spark.sql.adaptive.enabled"] = "false"
        for name, value in settings.items():
            self._spark.conf.set(name, value)


_FAILURES = (PySparkException, Py4JError, OSError, EOFError)


def _reason(error: BaseException) -> str:
    """Return why Spark did not answer, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
