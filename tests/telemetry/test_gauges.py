"""The gauges of a group: the holder shows them, and in embedded mode the workers do, in the same words."""

import re
from collections.abc import Mapping

import pytest
from redis.asyncio import Redis

from reaper.reasons import MOST_WORST
from tests.scripts.scene import Scene as Group
from tests.support.processes import Running
from tests.support.waiting import wait_until
from tests.telemetry.scene import Scene, metrics_of
from tests.workers.scene import KEYS, accept, make_worker, running
from workers.protocol.scripts import load_script
from workers.telemetry import names as telemetry
from workers.telemetry.instruments import (
    DISABLED,
    GAUGES,
    GROUPS_DEGRADED,
    GROUPS_WATCHED,
    LEASES_HELD,
    PARTS_DENIED,
    UNDELIVERABLE,
    Gauge,
)

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


def _shown(gauge: Gauge) -> str:
    """Return how Prometheus calls it."""
    return f"{gauge.name}_{'seconds' if gauge.unit == 's' else ''}".replace(".", "_").rstrip("_")


BY_HOLDERS = {_shown(gauge) for gauge in (DISABLED, UNDELIVERABLE)}
"""What a holder alone knows of its work."""
OF_PROCESSES = (LEASES_HELD, GROUPS_WATCHED, GROUPS_DEGRADED, PARTS_DENIED)
OF_GROUPS = {_shown(gauge) for gauge in GAUGES if gauge not in OF_PROCESSES}
HEALTH = ("--health-port", "0")
PATIENT = ("--visibility-timeout", "600")
"""What a foreign consumer holds stays with it."""
FAR_AWAY_MS = 10**14


@pytest.fixture
async def group(client: Redis) -> None:
    """A group with one delivery pending, and some jobs of each other kind."""
    group = Group(client)
    await group.prepare(lease=None)
    await group.stalled()
    await client.zadd(KEYS.schedule, {b"one": FAR_AWAY_MS, b"two": FAR_AWAY_MS})
    await client.zadd(KEYS.stream_schedule, {b"three": FAR_AWAY_MS})
    for number in range(4):
        await client.xadd(KEYS.dead, {"n": number})


async def gauges(process: Running) -> Mapping[str, float]:
    """Return what a process shows of groups: values by name with labels."""
    lines = (await metrics_of(process)).splitlines()
    series = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in series if name.partition("{")[0] in OF_GROUPS}


async def all_gauges(process: Running, names: set[str] = OF_GROUPS - BY_HOLDERS) -> Mapping[str, float]:
    """Wait until it shows every gauge of groups that it can know."""

    async def complete() -> Mapping[str, float]:
        shown = await gauges(process)
        return shown if {name.partition("{")[0] for name in shown} == names else {}

    return await wait_until(complete, "every gauge of the group is shown")


def counts(shown: Mapping[str, float]) -> dict[str, float]:
    """Return the values by bare names, but for ages and waits, which depend on when one looks."""
    named = {re.sub(r"\{.*", "", name): value for name, value in shown.items()}
    return {name: value for name, value in named.items() if "_age_" not in name and "_wait_" not in name}


@pytest.mark.usefixtures("group")
async def test_embedded_workers_show_the_same_gauges_as_a_holder_and_leave_them_to_it(scene: Scene) -> None:
    scene.env = {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    workers = [await scene.worker(*PATIENT, *HEALTH, "--recovery", "embedded", "--name", name) for name in ("a", "b")]
    by_workers = [await all_gauges(worker) for worker in workers]
    holder = await scene.reaper(*PATIENT, *HEALTH)
    of_holder = await all_gauges(holder, OF_GROUPS)
    assert all('messaging_destination_name="orders"' in name for name in of_holder)
    by_holder = {name: value for name, value in of_holder.items() if name.partition("{")[0] not in BY_HOLDERS}
    assert {frozenset(shown) for shown in by_workers} == {frozenset(by_holder)}
    expected = {
        "reaper_in_flight": 1.0,
        "reaper_scheduled": 3.0,
        "reaper_quarantined": 0.0,
        "reaper_dead_letters": 4.0,
        "reaper_recovery_paused": 0.0,
    }
    assert [counts(shown) for shown in (*by_workers, by_holder)] == [expected] * 3
    ages = [next(value for name, value in shown.items() if "pending" in name) for shown in (*by_workers, by_holder)]
    assert all(60 <= age < 3_600 for age in ages)
    assert ages[0] <= ages[2]

    async def shows_nothing() -> bool:
        return not any([await gauges(worker) for worker in workers])

    await wait_until(shows_nothing, "the workers leave them to the reaper")


async def test_a_holder_shows_paused_and_unsupported_groups_beside_hidden_ones(scene: Scene, client: Redis) -> None:
    scene.env = {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    for stream in ("orders", "mail", "hidden"):
        await client.xgroup_create(stream, "billing", "0", mkstream=True)
    await client.xgroup_create("orders", "audit", "0")
    await client.hset("{mail}:group:billing", "paused", "1")
    rights = ("+@all", "&*", "~*reaper*", "~*orders*", "~*mail*")
    await client.execute_command("ACL", "SETUSER", "blind", "on", ">nothing", *rights)
    url = scene.server.url.replace("redis://", "redis://blind:nothing@")
    groups = "hidden/billing,orders/billing,mail/billing"
    holder = await scene.reaper(*PATIENT, *HEALTH, "--groups", groups, "--redis-url", url)

    async def told() -> bool:
        shown = await gauges(holder)
        of_streams = {
            (name.partition("{")[0], re.findall(r'destination_name="(\w+)"', name)[0]): value
            for name, value in shown.items()
            if "_recovery_" in name and "_wait_" not in name
        }
        return of_streams == {
            ("reaper_recovery_disabled", "orders"): 1.0,
            ("reaper_recovery_disabled", "mail"): 0.0,
            ("reaper_recovery_disabled", "hidden"): 0.0,
            ("reaper_recovery_paused", "orders"): 0.0,
            ("reaper_recovery_paused", "mail"): 1.0,
        }

    await wait_until(told, "it shows what it may see, and what it knows of its work")


async def test_of_many_groups_only_the_worst_have_series_of_their_own(scene: Scene, client: Redis) -> None:
    scene.env = {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    streams = [f"mail-{number:02}" for number in range(40)]
    for stream in streams:
        await client.xgroup_create(stream, "billing", "0", mkstream=True)
    await client.xgroup_create("mail-07", "audit", "0")  # so recovery is disabled
    groups = ",".join(f"{stream}/billing" for stream in streams)
    words = ("--redis-url", scene.server.url, "--groups", groups)
    holder = scene.processes.reaper(*words, *PATIENT, *HEALTH, env=scene.env)

    def series(text: str) -> set[str]:
        return set(re.findall(r'destination_name="([\w-]+)"', text))

    async def told() -> str:
        """Return what it shows as soon as it holds and has looked at every group."""
        text = await metrics_of(holder)
        disabled = re.search(r'reaper_groups_degraded{.*reaper_problem="disabled"} 1\.0', text)
        is_complete = disabled and re.search(r"reaper_leases_held{.*} 40\.0", text) and "mail-07" in series(text)
        return text if is_complete else ""

    text = await wait_until(told, "it holds every group, and shows the disabled one")
    assert len(series(text)) == MOST_WORST
    assert re.search(r"reaper_groups_watched{.*} 40\.0", text)
    assert not re.findall(r"(?:scan_duration|leases_taken).*destination_name", text)
    assert len(text) < 100_000


@pytest.mark.parametrize("measures", [False, True])
async def test_nobody_looks_where_nothing_is_measured(
    scene: Scene, client: Redis, monkeypatch: pytest.MonkeyPatch, measures: bool
) -> None:
    monkeypatch.setattr(telemetry, "is_measuring", lambda: measures)
    looks, *others = (
        load_script("workers.protocol", name).digest for name in ("look_at_group", "maintain_group", "move_due")
    )

    async def ran(*digests: str) -> bool:
        return all(await client.script_exists(*digests))

    async with running(make_worker(scene.server.url, accept, recovery="embedded")):
        # These go on side by side, in no order.
        await wait_until(lambda: ran(*others, *([looks] if measures else [])), "it looks after the group")
        assert await ran(looks) is measures
