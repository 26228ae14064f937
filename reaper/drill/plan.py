"""The jobs of a drill, read from its trace or made up."""

from reaper.drill.settings import DrillSettings
from reaper.drill.trace import MOST_JOBS, PlannedJob, generate_requests, plan_jobs, read_requests
from workers.protocol.errors import ConfigurationError

GENERATED_JOBS = 1_000
GENERATED_RATE = 70.0
"""Jobs a second; with the generated durations about 20 are in flight at a time."""


def planned(settings: DrillSettings) -> list[PlannedJob]:
    """Return the jobs that are played. Raises ConfigurationError, by the names of options."""
    if settings.trace is None:
        count = settings.limit or GENERATED_JOBS
        if count > MOST_JOBS:
            raise ConfigurationError(f"--limit asks for {count} jobs: at most {MOST_JOBS} are generated.")
        requests = generate_requests(settings.seed, count=count, rate=GENERATED_RATE)
    else:
        requests = read_requests(settings.trace, limit=settings.limit)
    return plan_jobs(requests, settings.times, speedup=settings.speedup)
