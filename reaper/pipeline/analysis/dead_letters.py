"""What dead letters have in common: clusters by error signature, with a sample and the command to redrive each."""

import shlex
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from reaper.operations.signatures import FRAME, MASKS, PATTERN_LENGTH, SIGNATURE_LENGTH
from reaper.pipeline.analysis.columns import named
from workers.protocol.events import EventName

CLUSTER = ("source_stream", "group", "signature")
"""Key of a cluster. The reason is part of the signature."""


def pattern_of(error: Column) -> Column:
    """Return what stays of an error's text, as `reaper.operations.signatures.pattern_of`."""
    for expression, mask in MASKS:
        error = F.regexp_replace(error, F.lit(expression), F.lit(mask))
    return F.trim(F.substring(error, 1, PATTERN_LENGTH))


def frame_of(traceback: Column) -> Column:
    """Return where an error was raised, as `reaper.operations.signatures.frame_of`."""
    file, function = (F.regexp_extract(traceback, FRAME, group) for group in (1, 2))
    return F.when(function != "", F.concat(file, F.lit(":"), function)).otherwise("")


def with_signatures(dead_letters: DataFrame) -> DataFrame:
    """Add ``pattern``, ``frame`` and ``signature`` to dead letters."""
    reason, error, traceback = (F.coalesce(name, F.lit("")) for name in ("reason", "error", "traceback"))
    described = dead_letters.withColumns({"pattern": pattern_of(error), "frame": frame_of(traceback)})
    parts = F.concat_ws("\n", reason, "pattern", "frame")
    return described.withColumn("signature", F.substring(F.sha2(parts, 256), 1, SIGNATURE_LENGTH))


def clusters(dead_letters: DataFrame, events: DataFrame) -> DataFrame:
    """Return one row a cluster, and its newest dead letter as sample.

    `CLUSTER`, ``reason, pattern, frame, n, redriven, first_ms, last_ms`` (server's ms), ``id, job, error, traceback,
    consumers, deliveries`` of the sample. ``redriven``: how many of them an operator has given back since.
    """
    gone = events.where(named(EventName.REDRIVEN)).select("group", F.col("entry").alias("id")).distinct()
    whose = dead_letters.where(F.col("source_stream").isNotNull() & F.col("group").isNotNull())
    marked = with_signatures(whose).join(gone.withColumn("given_back", F.lit(1)), ["group", "id"], "left")
    of_cluster = Window.partitionBy(*CLUSTER)
    newest_first = of_cluster.orderBy(F.desc("at"), F.desc("seq"))
    ranked = marked.withColumns(
        {
            "rank": F.row_number().over(newest_first),
            "n": F.count("*").over(of_cluster),
            "redriven": F.count("given_back").over(of_cluster),
            "first_ms": F.min(F.unix_millis("at")).over(of_cluster),
            "last_ms": F.max(F.unix_millis("at")).over(of_cluster),
        }
    )
    sample = ("id", "job", "error", "traceback", "consumers", "deliveries")
    return ranked.where(F.col("rank") == 1).select(
        *CLUSTER, "reason", "pattern", "frame", "n", "redriven", "first_ms", "last_ms", *sample
    )


def redrive_command(cluster: Row | Mapping[str, Any]) -> str:
    """Return the command that gives a cluster back; Redis is that of the settings (``REAPER_REDIS_URL``, a file)."""
    words = ("--stream", cluster["source_stream"], "--group", cluster["group"], "--signature", cluster["signature"])
    return shlex.join(["reaper", "dead-letters", "redrive", *words])
