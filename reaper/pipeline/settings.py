"""Settings of the data pipeline. Importing them needs no Spark."""

from datetime import timedelta

from pydantic import Field

from workers.runtime.settings import ProgramSettings, Seconds


class PipelineSettings(ProgramSettings):
    """All settings of the commands of `reaper pipeline`. Durations are seconds."""

    lake: str = Field(
        "lake",
        description="Folder of the lake, on a cluster one that every machine sees, or its place in an object store, "
        "such as `s3://bucket/lake`.",
    )
    lake_state: str = Field(
        "",
        description="Folder of Spark's checkpoint if the lake is in an object store. Each lake needs its own. A lake "
        "in a folder keeps the checkpoint in itself.",
    )
    lake_retention: Seconds | None = Field(
        None, gt=timedelta(0), description="How much of the past the lake keeps, by whole days. Default: all of it."
    )
    trigger: Seconds = Field(
        timedelta(seconds=10), gt=timedelta(0), description="How often ingestion looks for new entries."
    )
    spark_master: str = Field(
        "",
        description="Spark's master, such as `spark://host:7077` or `local[4]`. Default: the value in Spark's own "
        "environment, else this machine.",
    )
    spark_remote: str = Field("", description="A Spark Connect server to use instead, such as `sc://host:15002`.")
    spark_memory: str = Field("2g", description="Memory of Spark's driver if the command starts it.")

    redis_url_env: str = Field(
        "",
        description="Name of an environment variable of Spark's machines that holds the address, instead of "
        "`redis_url`. Then Spark does not show the address. Files such as `redis_ca_file` are on those machines, too.",
    )
    journal_pattern: str = Field("*:journal", min_length=1, description="Pattern of the journals' keys.")
    dead_letter_pattern: str = Field(
        "*:dead:*", description="Pattern of the dead-letter streams' keys. If it is empty, none are ingested."
    )
    max_entries_per_trigger: int = Field(1_000_000, ge=1, description="Entries that one batch may have.")
    max_tasks: int = Field(
        16,
        ge=1,
        description="Tasks that read one batch at most. Ingestion uses one for each core of Spark, up to this number, "
        "and each task writes a file for a day.",
    )
    fail_on_data_loss: bool = Field(
        True, description="Stop if entries were trimmed before they were read. Off: log the loss and continue."
    )
    trim_margin: Seconds = Field(
        timedelta(minutes=10),
        ge=timedelta(0),
        description="Age below which `trim` leaves entries in the journals, although they are in the lake.",
    )
