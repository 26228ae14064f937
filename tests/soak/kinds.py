"""The faults that only the project's own drills play. Pure."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

from reaper.drill.faults import FORMS, LONG_JOBS, LONG_JOBS_FORM, Fault, FaultKind, Form
from workers.protocol.address import Topology


class SoakKind(StrEnum):
    """Faults of Redis, of its topology, and of third parties."""

    PAUSE_CLIENTS = "pause-clients"
    FAIL_OVER = "fail-over"
    SHUT_DOWN = "shut-down"
    RESTART_REDIS = "restart-redis"
    FILL_REDIS = "fill-redis"
    CUT_CONNECTIONS = "cut-connections"
    CLOCK_STEP = "clock-step"
    KILL_MASTER = "kill-master"
    PAUSE_MASTER = "pause-master"
    MOVE_SLOT = "move-slot"
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
    SoakKind.KILL_MASTER: Form(
        "kill-master:behind@4",
        "kill -9 of the master; its replicas got nothing for 1 s (:synced: they got everything)",
        "synced|behind",
        "synced",
        hits="redis",
    ),
    SoakKind.PAUSE_MASTER: Form(
        "pause-master@4+2",
        "the master is stopped until a replica is promoted, and 2 s longer",
        lasts=True,
        hits="redis",
    ),
    SoakKind.MOVE_SLOT: Form(
        "move-slot@4+1",
        "the stream's slot moves to another master, half moved for 1 s",
        lasts=True,
        hits="redis",
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
FAILOVERS = frozenset({SoakKind.KILL_MASTER, SoakKind.PAUSE_MASTER})
"""A replica is promoted. What it had not received is lost."""
SHORTENED = 4

FAILOVER_FAULTS = (
    Fault(FaultKind.KILL_WORKER, timedelta(seconds=1)),
    Fault(SoakKind.KILL_MASTER, timedelta(seconds=3), "behind"),
    Fault(SoakKind.PAUSE_MASTER, timedelta(seconds=10), lasts=timedelta(seconds=1)),
)
"""The default faults where a replica can be promoted."""


def objection_to(kind: str, topology: Topology) -> str:
    """Say why faults of this kind cannot be played there; empty where they can."""
    alone = topology is Topology.SINGLE
    if kind in FAILOVERS and alone:
        return "needs a replica that can be promoted: --topology sentinel or cluster."
    if kind == SoakKind.MOVE_SLOT and topology is not Topology.CLUSTER:
        return "needs slots: --topology cluster."
    return "" if alone else _ONE_SERVER.get(kind, "")


_ONE_SERVER: Mapping[str, str] = {
    SoakKind.FAIL_OVER: "is for one server and its replica: leave --topology away.",
    SoakKind.SHUT_DOWN: "is for one server and its replica: leave --topology away.",
    SoakKind.PAUSE_CLIENTS: "is for one server: Sentinels would take it for an outage.",
    FaultKind.PAUSE_REDIS: "is for one server: where another takes over, play pause-master.",
    SoakKind.RESTART_REDIS: "is for one server: where another takes over, play kill-master.",
    SoakKind.CLOCK_STEP: "sets the clock of one server, and here there are several: leave --topology away.",
}
