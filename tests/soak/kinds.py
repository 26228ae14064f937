"""The faults that only the project's own drills play. Pure."""

from collections.abc import Mapping
from enum import StrEnum

from reaper.drill.faults import FORMS, LONG_JOBS, LONG_JOBS_FORM, Form


class SoakKind(StrEnum):
    """Faults of Redis, and of third parties."""

    PAUSE_CLIENTS = "pause-clients"
    FAIL_OVER = "fail-over"
    SHUT_DOWN = "shut-down"
    RESTART_REDIS = "restart-redis"
    FILL_REDIS = "fill-redis"
    CUT_CONNECTIONS = "cut-connections"
    CLOCK_STEP = "clock-step"
    SHORTEN_VISIBILITY = "shorten-visibility"
    DESTROY_GROUP = "destroy-group"
    DELETE_CONSUMER = "delete-consumer"


SOAK_FORMS: Mapping[str, Form] = {
    **FORMS,
    LONG_JOBS: LONG_JOBS_FORM,
    SoakKind.PAUSE_CLIENTS: Form(
        "pause-clients:all@4+2",
        "Redis postpones all commands for 2 s (CLIENT PAUSE), or :writes alone, as in a planned failover",
        "writes|all",
        "writes",
        lasts=True,
        hits="redis",
    ),
    SoakKind.FAIL_OVER: Form(
        "fail-over@4+1", "FAILOVER to a replica that is 1 s behind, and back", lasts=True, hits="redis"
    ),
    SoakKind.SHUT_DOWN: Form(
        "shut-down@4+1",
        "SIGTERM of Redis, whose replica is 1 s behind; it starts again with its RDB file",
        lasts=True,
        hits="redis",
    ),
    SoakKind.RESTART_REDIS: Form(
        "restart-redis@4+2",
        "kill -9 of Redis, which starts again 2 s later with everything that it had acknowledged",
        lasts=True,
        hits="redis",
    ),
    SoakKind.FILL_REDIS: Form("fill-redis@4+5", "Redis is full for 5 s, and rejects writes", lasts=True, hits="redis"),
    SoakKind.CUT_CONNECTIONS: Form("cut-connections@4", "every connection to Redis is cut at once", hits="redis"),
    SoakKind.CLOCK_STEP: Form(
        "clock-step:ahead@4",
        "the server's clock is set ahead by an hour (or :back); needs a C compiler",
        "back|ahead",
        "back",
    ),
    SoakKind.SHORTEN_VISIBILITY: Form("shorten-visibility@4", "the visibility timeout becomes a quarter"),
    SoakKind.DESTROY_GROUP: Form("destroy-group@4", "the group is destroyed (XGROUP DESTROY)"),
    SoakKind.DELETE_CONSUMER: Form(
        "delete-consumer:killed@4",
        "a worker is killed, and its consumer deleted with its deliveries (or :live) *",
        "live|killed",
        "live",
    ),
}

AGAINST_REAPERS = frozenset(kind for kind, form in SOAK_FORMS.items() if form.hits == "reapers")
AGAINST_REDIS = frozenset(kind for kind, form in SOAK_FORMS.items() if form.hits == "redis")
NEEDS_REPLICA = frozenset({SoakKind.FAIL_OVER, SoakKind.SHUT_DOWN})
SHORTENED = 4
