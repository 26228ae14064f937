"""How a drill of the project's own is played, as its options say."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from reaper.drill.faults import Form
from reaper.drill.recoveries import RECOVERIES, Recovery
from reaper.drill.settings import NO_OPTIONS, DrillSettings
from reaper.drill.trace import PlannedJob, generate_requests
from tests.soak.chaos import Conditions, draw, patience_s
from tests.soak.kinds import SHORTENED, SOAK_FORMS, SoakKind
from tests.support.clock import can_set_clocks
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import Seconds

CHAOS_RATE, CHAOS_TAIL_S = 25.0, 8.0
"""Jobs a second in a chaos, which may last for hours; they go on so long after the last fault may come."""
LEFT_OUT = {*NO_OPTIONS, "redis_url", "keep_keys", "files", "quiet", "server"}
"""Settings that the command of a chaos does not name."""


class SoakSettings(DrillSettings):
    """Those of a user's drill, and more."""

    forms: ClassVar[Mapping[str, Form]] = SOAK_FORMS

    server: Path | None = Field(None, description="The program of the server. Default: as for `reaper drill`.")
    chaos: Seconds | None = Field(
        None,
        ge=timedelta(seconds=1),
        description="Draw faults of all kinds by --seed, for so many seconds, instead of --fault.",
    )

    def jobs(self) -> list[PlannedJob]:
        """Return the jobs. A chaos has fewer a second. Raises ConfigurationError."""
        if self.chaos is None or self.trace is not None or self.limit:
            return super().jobs()
        count = round((self.chaos.total_seconds() + CHAOS_TAIL_S) * CHAOS_RATE)
        return self.planned(generate_requests(self.seed, count=count, rate=CHAOS_RATE))

    def with_faults(self, recovery: Recovery, jobs: Sequence[PlannedJob], *, given: bool) -> "SoakSettings":
        """Return the settings with the given, drawn or default faults."""
        if self.chaos:
            if given:
                raise ConfigurationError("--chaos draws all faults by itself: leave --fault away.")
            conditions = self.conditions(recovery, jobs)
            faults = draw(self.seed, self.chaos.total_seconds(), conditions)
            return self.model_copy(update={"faults": faults})
        return self if given else self.fitting(jobs)

    def write_reaper_settings(self, file: Path, visibility_s: float) -> None:
        """Write the settings file of reapers. They report soon what third parties delete."""
        deletes = bool(self.kinds & {SoakKind.DESTROY_GROUP, SoakKind.DELETE_CONSUMER})
        lines = ("full_scan_interval = 1",) if deletes else ()
        file.write_text("\n".join([f"visibility_timeout = {visibility_s!r}", *lines, ""]), encoding="utf-8")

    def patience_s(self, jobs: Sequence[PlannedJob]) -> float:
        """Return after how many seconds an act is over in any case. A chaos has faults that put it off."""
        more_s = patience_s(self.faults, self.conditions(RECOVERIES["reaper"], jobs)) if self.chaos else 0.0
        return super().patience_s(jobs) + more_s

    def conditions(self, recovery: Recovery, jobs: Sequence[PlannedJob]) -> Conditions:
        """Return what a chaos is drawn for."""
        longest = max((job.duration for job in jobs), default=timedelta(0))
        return Conditions(
            recovery=recovery,
            workers=self.workers,
            reapers=self.reapers,
            visibility_s=self.visibility_timeout.total_seconds(),
            lease_ttl_s=self.lease_ttl.total_seconds(),
            longest_job_s=longest.total_seconds(),
            max_deliveries=self.max_deliveries,
            bare_worker=self.has_bare_worker,
            out_of_reach=self.out_of_reach,
        )

    @property
    def out_of_reach(self) -> frozenset[str]:
        """Kinds of faults that cannot be played on this machine."""
        return frozenset() if can_set_clocks() else frozenset({SoakKind.CLOCK_STEP})

    @property
    def shortest_visibility(self) -> timedelta:
        """A quarter if it is shortened. No time at all if the group is destroyed, which ends bare loops."""
        if SoakKind.DESTROY_GROUP in self.kinds:
            return timedelta(0)
        return self.visibility_timeout / (SHORTENED if SoakKind.SHORTEN_VISIBILITY in self.kinds else 1)

    def command(self, recovery: Recovery) -> str:
        """Return the command that repeats a chaos, with the same jobs, and the same faults at the same moments."""
        words = ["python", "-m", "tests.soak", "--recovery", recovery.name]
        for name, field in SoakSettings.model_fields.items():
            value, flag = getattr(self, name), name.replace("_", "-")
            if name in LEFT_OUT or (value == field.default and name != "seed"):
                continue
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{flag}")
            else:
                words += [f"--{flag}", f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value)]
        return shlex.join(words)

    def as_json(self, recovery: Recovery) -> dict[str, Any]:
        """Return the settings for a report."""
        return {**super().as_json(recovery), "chaos": self.chaos.total_seconds() if self.chaos else None}
