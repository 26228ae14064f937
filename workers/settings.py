"""Settings of a worker process. `workers.cli` reads them for `worker run`. Programs pass them to `Worker`."""

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, field_validator, model_validator

from workers.backoff import Backoff
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import MAX_DELIVERIES_LIMIT, RecoveryMode, Redelivery, is_entry_id
from workers.runtime.settings import (
    SHORTEST_VISIBILITY,
    HealthHost,
    JournalMaxlen,
    ProgramSettings,
    Seconds,
    seconds,
    to_ms,
)

MAX_NAME_LENGTH = 200


class WorkerSettings(ProgramSettings):
    """The settings of one worker process."""

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None: ...

    stream: str = Field(description="Name of the stream of jobs.")
    group: str = Field(description="Name of the consumer group. The worker creates it if it is missing.")
    name: str = Field(
        default="",
        max_length=MAX_NAME_LENGTH,
        description="Stable name of this worker, used by one process at a time. When it starts, it makes the "
        "pending jobs of the earlier process with that name overdue. Default: the host name, and no job becomes "
        "overdue.",
    )
    concurrency: int = Field(default=64, ge=1, le=10_000, description="How many jobs run at the same time.")
    visibility_timeout: Seconds | None = seconds(
        None,
        "How long a delivery may go without a heartbeat before it is recovered. Default: the group settings, else 30s.",
        least=SHORTEST_VISIBILITY,
    )
    max_deliveries: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DELIVERIES_LIMIT,
        description="Counted deliveries of a job before it is dead-lettered. Default: the group settings, else 3.",
    )
    redelivery: Redelivery | None = Field(
        default=None,
        description="How a failed or recovered job becomes ready again, as in `reaper run`. A reaper's value has "
        "priority. Default: the group settings, else `stream`.",
    )
    recovery: RecoveryMode = Field(
        default=RecoveryMode.REAPER,
        description="Which processes recover stalled deliveries: `reaper` (the service), or `embedded` (the workers, "
        "without a reaper). All workers of a group need the same value.",
    )
    backoff_base: Seconds = seconds(
        1,
        "Longest delay after a job's first failure. It doubles with each further failure, and the delay is a random "
        "part of it. 0 makes the job ready immediately.",
        least=timedelta(0),
    )
    timeout: Seconds | None = seconds(
        None,
        "How long a job without a timeout of its own (`reaper.timeout_ms`) may run. Then the delivery fails and the "
        "handler is cancelled, or its thread abandoned. Default: no limit.",
    )
    drain_timeout: Seconds = seconds(
        30,
        "How long running jobs may continue after the first signal to stop. Later they are handed back.",
        least=timedelta(0),
    )
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of `/livez`, `/readyz` and `/metrics`. 0 takes a free port and logs it. Default: no port.",
    )
    journal: bool = Field(default=True, description="Write lifecycle events to the journal of the stream.")
    job_type_field: str = Field(
        default="",
        max_length=256,
        description="Name of the payload field that holds the type of a job. Lifecycle events then have the field "
        "`type` (at most 64 characters), and a program may have a handler for each type. Default: jobs have no types.",
    )

    backoff_cap: Seconds = seconds(300, "Upper limit of the longest delay.", least=timedelta(0))
    group_start: str = Field(
        default="0",
        description="Where a group that the worker creates begins to read: `0` (the first entry), `$` (only new "
        "entries) or an entry ID.",
    )
    delete_settled: bool = Field(
        default=False,
        description="Delete an entry from the stream once it is acknowledged, if the stream has no other group. "
        "Readers without a group miss deleted entries.",
    )
    consumer_retention: Seconds | None = seconds(
        None,
        "In embedded mode, delete consumers that have no pending entry and were idle for this long. Default: never.",
    )
    health_host: HealthHost = "127.0.0.1"
    journal_maxlen: JournalMaxlen = DEFAULT_JOURNAL_MAXLEN

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not name.isprintable() or "," in name:
            raise ValueError("Use printable characters without commas, because it is a part of consumer names")
        return name

    @field_validator("group_start")
    @classmethod
    def _start_id(cls, start: str) -> str:
        if start != "$" and not is_entry_id(start if "-" in start else f"{start}-0"):
            raise ValueError("Write '0', '$' or an entry ID such as '1700000000000-0'")
        return start

    @model_validator(mode="after")
    def _names_can_work(self) -> Self:
        group_keys(self.stream, self.group)  # raises ConfigurationError, with a sentence of its own
        return self

    @property
    def journal_limit(self) -> int:
        """Length of the journal, for scripts. 0 = no journal."""
        return self.journal_maxlen if self.journal else 0

    @property
    def keys(self) -> GroupKeys:
        """The Redis keys of the group."""
        return group_keys(self.stream, self.group)

    @property
    def backoff(self) -> Backoff:
        """The delays of failed jobs."""
        return Backoff(to_ms(self.backoff_base), to_ms(self.backoff_cap))

    @property
    def base_name(self) -> str:
        """The configured name, or the host name. Consumer names of earlier processes begin with it, too."""
        return self.name or socket.gethostname()
