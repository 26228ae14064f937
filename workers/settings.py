"""Settings of a worker process. `workers.cli` reads them for `worker run`; a program gives them to `Worker`."""

import socket
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Self, Unpack

from pydantic import Field, field_validator, model_validator

from workers.backoff import Backoff
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN, JournalLevel
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import MAX_DELIVERIES_LIMIT, RecoveryMode, Redelivery, is_entry_id
from workers.runtime.event_loop import EventLoop, Loop
from workers.runtime.redis_settings import ProgramSettings, RedisArguments
from workers.runtime.settings import (
    SHORTEST_VISIBILITY,
    Duration,
    HealthHost,
    JournalMaxlen,
    Seconds,
    seconds,
    to_ms,
)

MAX_NAME_LENGTH = 200


class UnknownJobTypes(StrEnum):
    """What becomes of jobs whose type no handler is for."""

    DEAD_LETTER = "dead-letter"
    LEAVE = "leave"


class WorkerOptions(RedisArguments, total=False):
    """What programs may say of a worker beside its stream and group, as type checkers see it.

    Pydantic reads more than its fields hold (``30`` for a timedelta), which type checkers cannot know. A test compares
    this with the fields.
    """

    name: str
    concurrency: int
    visibility_timeout: Duration | None
    max_deliveries: int | None
    redelivery: Redelivery | Literal["stream", "retry-stream", "in-place"] | None
    recovery: RecoveryMode | Literal["reaper", "embedded", "claim"]
    backoff_base: Duration
    backoff_cap: Duration
    group_start: str
    timeout: Duration | None
    drain_timeout: Duration
    delete_settled: bool
    consumer_retention: Duration | None
    health_port: int | None
    health_host: str
    loop: EventLoop | Literal["auto", "asyncio", "uvloop"]
    journal: JournalLevel | Literal["off", "settlements", "full"]
    job_type_field: str
    unknown_job_types: UnknownJobTypes | Literal["dead-letter", "leave"]
    journal_maxlen: int


class WorkerArguments(WorkerOptions, total=False):
    """The arguments of `WorkerSettings`. None is required: what is not given may be in the environment."""

    stream: str
    group: str


class WorkerSettings(ProgramSettings):
    """Everything one worker process needs to know. Durations are seconds."""

    if TYPE_CHECKING:

        def __init__(self, **values: Unpack[WorkerArguments]) -> None: ...

    stream: str = Field(description="Name of the stream the jobs live in.")
    group: str = Field(description="Name of the consumer group to work in; it is created where it is missing.")
    name: str = Field(
        default="",
        max_length=MAX_NAME_LENGTH,
        description="Stable name of this worker, of one process at a time: at its start it runs again what an "
        "earlier process of that name held. Default: the host name, and nothing is run again.",
    )
    concurrency: int = Field(default=64, ge=1, le=10_000, description="Jobs that run at the same time (slots).")

    visibility_timeout: Seconds | None = seconds(
        None,
        "How long a delivery may stay unsettled before it is recovered. "
        "Default: what the group has agreed on, else 30.",
        least=SHORTEST_VISIBILITY,
    )
    max_deliveries: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DELIVERIES_LIMIT,
        description="Counted deliveries of a job before it is dead-lettered. "
        "Default: what the group has agreed on, else 3.",
    )
    redelivery: Redelivery | None = Field(
        default=None,
        description="How a failed job becomes ready again: `stream` (copy to the stream's tail; the group must be "
        "its only one), `retry-stream` (copy to the group's own retry stream) or `in-place` (nothing is copied: the "
        "reaper has to say the same, or recovery is `claim`). "
        "Default: what the group has agreed on, else `stream`.",
    )
    recovery: RecoveryMode = Field(
        default=RecoveryMode.REAPER,
        description="Who gives stalled deliveries back: `reaper` (a service that runs on its own), `embedded` (the "
        "workers themselves, each in its own loop; no reaper is needed) or `claim` (the same, and nothing is copied: "
        "reads with CLAIM bring it, Redis 8.4 or newer). All workers of a group should say the same.",
    )
    backoff_base: Seconds = seconds(
        1,
        "Longest delay after a job's first failure; it doubles with each further one (full jitter: the "
        "delay is anything from 0 to that). 0 = ready again at once.",
        may_be_zero=True,
    )
    backoff_cap: Seconds = seconds(300, "Longest delay between deliveries of a job that fails.", may_be_zero=True)
    group_start: str = Field(
        default="0",
        description="Where a group that has to be created starts: `0` (everything that is there), `$` (only what "
        "comes from now on) or an entry ID.",
    )

    timeout: Seconds | None = seconds(
        None,
        "How long a job may run that has no timeout of its own (`reaper.timeout_ms`): then its handler is "
        "cancelled, or its thread abandoned, and the delivery has failed. Default: no limit; what runs is extended.",
    )
    drain_timeout: Seconds = seconds(
        30, "How long running jobs may go on after the first signal to stop; the rest is handed back.", may_be_zero=True
    )
    delete_settled: bool = Field(
        default=False,
        description="Delete an entry from the stream once it is acknowledged. Only done while the group is the "
        "stream's only one; readers without a group miss what is deleted.",
    )
    consumer_retention: Seconds | None = seconds(
        None, "Recovery by workers: delete consumers that hold nothing and were silent for this long; default: never."
    )
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of `/livez`, `/readyz`, `/status` and `/metrics`; 0 = any free one (the log says which). "
        "Default: none of that is served.",
    )
    health_host: HealthHost = "127.0.0.1"
    loop: Loop = EventLoop.AUTO
    journal: JournalLevel = Field(
        default=JournalLevel.SETTLEMENTS, description="Lifecycle events: off, settlements (one a job) or full."
    )
    job_type_field: str = Field(
        default="",
        max_length=256,
        description="Name of the payload field that says what type a job has: lifecycle events then carry it as `type` "
        "(at most 64 characters), and a program may have a handler for each. Default: none, and reports cannot tell "
        "types of jobs apart.",
    )
    unknown_job_types: UnknownJobTypes = Field(
        default=UnknownJobTypes.DEAD_LETTER,
        description="What becomes of a job whose type no handler of the program is for: `dead-letter` (at once, with a "
        "sentence that says so) or `leave` (for other workers of the group: given back without counting, after the "
        "backoff, until it is a day old).",
    )
    journal_maxlen: JournalMaxlen = DEFAULT_JOURNAL_MAXLEN

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not name.isprintable() or "," in name:
            raise ValueError("use printable characters without commas: it becomes part of consumer names")
        return name

    @field_validator("group_start")
    @classmethod
    def _start_id(cls, start: str) -> str:
        if start != "$" and not is_entry_id(start if "-" in start else f"{start}-0"):
            raise ValueError("write '0', '$' or an entry ID such as '1700000000000-0'")
        return start

    @model_validator(mode="after")
    def _claims_in_place(self) -> Self:
        in_place = self.redelivery is Redelivery.IN_PLACE
        if self.recovery is RecoveryMode.CLAIM and self.redelivery is not None and not in_place:
            raise ValueError("recovery 'claim' gives back in place, without copies: leave redelivery out.")
        if self.recovery is RecoveryMode.EMBEDDED and in_place:
            raise ValueError("recovery 'embedded' gives back by copies: for 'in-place', set recovery 'claim'.")
        return self

    @model_validator(mode="after")
    def _names_can_work(self) -> Self:
        group_keys(self.stream, self.group)  # raises ConfigurationError, with a sentence of its own
        return self

    @property
    def keys(self) -> GroupKeys:
        """The Redis keys of the pair."""
        return group_keys(self.stream, self.group)

    @property
    def wished_redelivery(self) -> Redelivery | None:
        """The policy to ask for; None = the group's. Under a reaper, only the reaper asks for in-place."""
        if self.recovery is RecoveryMode.CLAIM:
            return Redelivery.IN_PLACE
        return None if self.redelivery is Redelivery.IN_PLACE else self.redelivery

    @property
    def backoff(self) -> Backoff:
        """When a job that failed is ready again."""
        return Backoff(to_ms(self.backoff_base), to_ms(self.backoff_cap))

    @property
    def adopts(self) -> bool:
        """Tell whether the name was configured, so that what earlier processes of it held is ours to run."""
        return bool(self.name)

    @property
    def base_name(self) -> str:
        """The part of the consumer name that earlier processes share: the configured name, else the host's."""
        return self.name or socket.gethostname()
