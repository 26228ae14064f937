"""The jobs of a drill, read from its trace or made up."""

from reaper.drill.settings import DrillSettings
from reaper.drill.trace import MOST_JOBS, PlannedJob, generate_requests, plan_jobs, read_requests
from workers.protocol.errors import ConfigurationError

GENERATED_JOBS = 1_000
GENERATED_RATE = 70.0
"""Jobs a second; with the generated durations about 20 are in flight at a time."""
CHAOS_RATE, CHAOS_TAIL_S = 25.0, 8.0
"""In a chaos: fewer, since it may go on for hours; and longer, so that what comes late finds something to hit."""


def planned(settings: DrillSettings) -> list[PlannedJob]:
    """Return the jobs that are played. Raises ConfigurationError, by the names of options."""
    if settings.trace is None:
        count, rate = GENERATED_JOBS, GENERATED_RATE
        if settings.chaos:
            count, rate = round((settings.chaos.total_seconds() + CHAOS_TAIL_S) * CHAOS_RATE), CHAOS_RATE
        count = settings.limit or count
        if count > MOST_JOBS:
            option = "--limit" if settings.limit else "--chaos"
            raise ConfigurationError(f"{option} asks for {count} jobs: at most {MOST_JOBS} are generated.")
        requests = generate_requests(settings.seed, count=count, rate=rate)
    else:
        requests = read_requests(settings.trace, limit=settings.limit)
    return plan_jobs(requests, settings.times, speedup=settings.speedup)
