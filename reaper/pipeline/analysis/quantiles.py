"""Exact quantiles by counting: equal values are counted first, so that only distinct values are ever sorted.

Values are whole milliseconds, which repeat: millions of run times are some thousands of distinct values. Quantiles are
by nearest rank, so every figure is one that occurred. Counts can be added up, for charts and over several lakes.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

QUANTILES = {"p50": 500, "p95": 950, "p99": 990, "p999": 999}
"""Name of a column, and its rank in thousandths (whole numbers: ``0.07 * 100`` is more than 7)."""

BINS_PER_DECADE = 20


def tally(rows: DataFrame, keys: Sequence[str], value: str) -> DataFrame:
    """Count equal values: ``keys…, value, n``. Nulls are left out."""
    return rows.where(F.col(value).isNotNull()).groupBy(*keys, value).agg(F.count("*").alias("n"))


def quantiles(tallied: DataFrame, keys: Sequence[str], value: str) -> DataFrame:
    """Return ``keys…, n, p50, p95, p99, p999, max`` of tallied values."""
    # Sorting by one number takes half as long as by several texts. Two of some thousand keys have the same hash in one
    # report of a billion.
    all_of_key = Window.partitionBy(F.xxhash64(*keys))
    ranked = tallied.withColumns(
        {
            "_rank": F.sum("n").over(all_of_key.orderBy(value).rowsBetween(Window.unboundedPreceding, 0)),
            "_total": F.sum("n").over(all_of_key),
        }
    )
    at_rank = {
        name: F.min(F.when(F.col("_rank") * 1000 >= F.col("_total") * share, F.col(value)))
        for name, share in QUANTILES.items()
    }
    return ranked.groupBy(*keys).agg(
        F.max("_total").alias("n"),
        *(column.alias(name) for name, column in at_rank.items()),
        F.max(value).alias("max"),
    )


def curve(tallied: DataFrame, keys: Sequence[str], value: str) -> DataFrame:
    """Count tallied values by size, for a chart: ``keys…, below, n``, on a scale of `BINS_PER_DECADE`.

    ``below`` is the upper bound of the bin; everything under 1 lies below 1.
    """
    exponent = F.floor(F.log10(F.greatest(value, F.lit(1))) * BINS_PER_DECADE + 1e-9) + 1
    below = F.when(F.col(value) < 1, F.lit(1.0)).otherwise(F.round(F.pow(F.lit(10.0), exponent / BINS_PER_DECADE), 3))
    return tallied.groupBy(*keys, below.alias("below")).agg(F.sum("n").alias("n"))
