"""Settings of the data pipeline. Needs no Spark: the page of all settings is written from here, too."""

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from workers.runtime.redis_settings import PREFIX, RedisSettings
from workers.runtime.settings import Seconds


class PipelineSettings(RedisSettings):
    """Everything that the commands of `reaper pipeline` need to know. Durations are seconds."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix=f"{PREFIX}PIPELINE_")
    other_env: ClassVar[frozenset[str]] = frozenset({f"{PREFIX}PIPELINE_CONFIG"})
    borrowed: ClassVar[Mapping[str, str]] = {name: f"{PREFIX}{name.upper()}" for name in RedisSettings.model_fields}

    lake: str = Field(
        "lake",
        description="Folder of the lake, on a cluster one that every machine sees; or where it is in an object store, "
        "such as `s3://bucket/lake`.",
    )
    state: str = Field(
        "",
        description="Folder of Spark's checkpoint, for a lake in an object store; it belongs to the lake. A lake "
        "that is a folder keeps it in itself.",
    )
    redis_url_env: str = Field(
        "",
        description="Name of an environment variable of Spark's machines that holds the address, instead of "
        "`redis_url`: so it is written down nowhere. What stands in files (`redis_ca_file` …) is theirs, too.",
    )
    journals: str = Field("*:journal", min_length=1, description="Pattern of the journals' keys.")
    dead_letters: str = Field("*:dead:*", description="Pattern of the dead-letter streams' keys; empty: none.")
    trigger: Seconds = Field(
        timedelta(seconds=10), gt=timedelta(0), description="How often new entries are looked for."
    )
    max_entries_per_trigger: int = Field(1_000_000, ge=1, description="Entries that one batch may have.")
    max_tasks: int = Field(
        16,
        ge=1,
        description="Tasks that read a batch, at most; by default as many as Spark has cores. Each writes a file "
        "for a day.",
    )
    fail_on_data_loss: bool = Field(
        True, description="Stop where entries were trimmed before they were read; off: say so, and go on."
    )

    master: str = Field(
        "",
        description="Spark's master, such as `spark://host:7077` or `local[4]`. Default: what Spark's own environment "
        "says, else this machine.",
    )
    remote: str = Field("", description="A Spark Connect server to use instead, such as `sc://host:15002`.")
    heap: str = Field("2g", description="Memory of Spark's driver, where it is started here.")

    target_mb: int = Field(128, ge=1, description="Size that compaction joins files up to, in MB.")
    keep: Seconds | None = Field(
        None, gt=timedelta(0), description="How much of the past the lake keeps, by whole days; default: all of it."
    )
    margin: Seconds = Field(
        timedelta(minutes=10), ge=timedelta(0), description="How much of what is in the lake the journals keep, too."
    )
