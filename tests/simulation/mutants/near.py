"""Which tests know a file best: they are tried first."""

from collections.abc import Iterable

SCRIPTS = {
    **{
        name: ["explorer/test_races", "explorer/test_moves"]
        for name in ("ack", "settle", "extend", "hold", "recover", "move_due", "adopt", "keys")
    },
    "prelude": [
        "explorer/test_races",
        "explorer/test_moves",
        "scripts/test_beat",
        "scripts/test_forget_group",
        "operator/test_redrive",
    ],
    "report_lost": ["scripts/test_housekeeping", "faults/test_housekeeping"],
    "ready_again": ["scripts/test_requeue", "operator/test_requeue", "operator/test_redrive"],
    "join_group": ["scripts/test_join_group", "workers/test_membership"],
    "delete_consumer": ["workers/test_leaving", "workers/test_adoption", "workers/test_vanished"],
    "maintain_group": ["scripts/test_housekeeping", "faults/test_housekeeping"],
    "enqueue": ["scripts/test_enqueue", "workers/test_producer"],
}
"""Of a script, where that is not the test that has its name."""

MODULES = {
    "reaper/sharing/tenure": ["reaper/test_tenure", "faults/test_sharing", "faults/test_lost_lease"],
    "reaper/lease": ["reaper/test_tenure", "faults/test_lost_lease"],
    "reaper/recovery/group_watch": ["reaper/test_service", "faults/test_housekeeping", "reaper/test_many_groups",
                                    "faults/test_schedule", "faults/test_paused_holder", "faults/test_several_groups",
                                    "faults/test_changed_settings"],
    "reaper/recovery/lost": ["operator/test_many_in_an_entry", "faults/test_housekeeping"],
    "reaper/recovery/source_watch": ["reaper/test_source_watch", "faults/test_lost_replies",
                                     "faults/test_outage", "faults/test_crash"],
    "reaper/recovery/writer": ["reaper/test_source_watch", "faults/test_paused_holder"],
    "reaper/service": ["reaper/test_service", "reaper/test_many_groups"],
    "workers/embedded/autoclaim": ["workers/test_autoclaim", "faults/test_embedded",
                                   "faults/test_outage"],
    "workers/loop/adoption": ["workers/test_adoption"],
    "workers/loop/dispatch": ["workers/test_dispatch", "workers/test_batches"],
    "workers/loop/heartbeat": ["workers/test_in_time", "workers/test_heartbeat", "workers/test_timeouts",
                               "faults/test_proof_of_life"],
    "workers/loop/in_flight": ["workers/test_delivered_anew", "workers/test_slots"],
    "workers/loop/membership": ["workers/test_membership", "workers/test_heartbeat", "faults/test_changed_settings"],
    "workers/loop/reading": ["workers/test_reading", "workers/test_claiming", "workers/test_adoption"],
    "workers/loop/runner": ["workers/test_in_time", "workers/test_execution", "workers/test_heartbeat",
                            "workers/test_timeouts", "workers/test_leaving", "workers/test_vanished"],
    "workers/loop/settlement": ["workers/test_settlement", "workers/test_denied"],
    "workers/loop/slots": ["workers/test_slots", "workers/test_batches"],
    "workers/loop/isolation": ["workers/test_isolation"],
    "workers/outbox": ["workers/test_producer", "workers/test_sync_producer"],
    "workers/protocol/calls/membership": ["scripts/test_join_group", "workers/test_membership"],
    "workers/protocol/connection": ["protocol/test_connection", "protocol/test_kept_connection"],
    "workers/protocol/meaning": ["protocol/test_meaning"],
    "workers/protocol/wire": ["protocol/test_connection", "protocol/test_kept_connection", "protocol/test_sentinels",
                              "faults/test_failover"],
    "workers/protocol/server": ["protocol/test_nodes", "protocol/test_connection"],
    "workers/upkeep/cleanup": ["workers/test_upkeep", "scripts/test_housekeeping", "faults/test_housekeeping"],
    "reaper/operations/ready_again": ["operator/test_requeue", "operator/test_redrive"],
    "workers/protocol/calls/declined": ["scripts/test_beat"],
}  # fmt: skip
"""Of a module, likewise: by its path."""


def near(files: Iterable[str]) -> list[str]:
    """Return the test files that know ``files`` best, each once."""
    found: dict[str, None] = {}
    for file in files:
        path, _, kind = file.rpartition(".")
        folder, name = path.split("/")[-2:]
        name = folder if kind == "lua" and folder != "lua" else name
        known = SCRIPTS.get(name) if kind == "lua" else MODULES.get(path)
        for test in known or [f"scripts/test_{name}" if kind == "lua" else f"reaper/test_{name}"]:
            found[f"tests/{test}.py"] = None
    return list(found)
