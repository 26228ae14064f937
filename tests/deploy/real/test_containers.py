"""The shipped image and compose file. They come up and stay up, and jobs outlive dead containers."""

from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.deploy.assets import COMPOSE, document
from tests.deploy.real.engine import TAG, Engine
from tests.deploy.real.stack import Stack, denied
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.deployed]

REPLICAS = document(COMPOSE)["services"]["reaper"]["deploy"]["replicas"]
REFRESHES = 3
"""How often workers look at the group settings again: twice were not enough to see that they had stopped to read."""
REFRESHES_S = 180.0
STANDS_ON_THE_FIRST = """\
import logging

import anyio

from workers import Job, Worker

logger = logging.getLogger("shop")
worker = Worker("orders", "billing", concurrency=16)


@worker.handler
async def bill(job: Job) -> None:
    if job.fields.get(b"stands") and job.deliveries == 1:
        logger.info("stands with %s", job.id)
        await anyio.sleep_forever()
    logger.info("billed %s, delivery %d", job.id, job.deliveries)
"""
"""A worker's program whose first delivery of some jobs never ends."""


async def test_the_image_is_what_the_dockerfile_says(engine: Engine) -> None:
    """The image of the shipped Dockerfile. No process is root, and the system's folders are read-only."""
    run = ("docker", "run", "--rm", "--read-only", "--network", "none", TAG)
    assert engine.run(*run, "python", "-c", "import os; print(os.getuid(), os.getgid())").split() == ["10001", "10001"]
    assert engine.run(*run, "reaper", "--version").startswith("reaper, version ")
    check = engine.run("docker", "image", "inspect", "--format", "{{json .Config.Healthcheck.Test}}", TAG)
    assert "/livez" in check


async def test_all_of_it_comes_up(stack: Stack) -> None:
    """Compose with `make-users` and `up`.

    All containers are healthy, all replicas live, and the status reports no problem.
    """
    for service, number in (("redis", 1), ("reaper", REPLICAS), ("worker", 2)):
        names = stack.containers(service)
        assert len(names) == number
        for name in names:
            await stack.is_healthy(name)
    await wait_until(lambda: stack.status()["status"] == "healthy", "the status is healthy")
    replicas = stack.status()["replicas"]
    assert [one["live"] for one in replicas] == [True] * REPLICAS
    assert len({one["settings"] for one in replicas}) == 1


async def test_jobs_of_the_shop_are_done_and_what_is_no_order_is_a_dead_letter(stack: Stack) -> None:
    """Jobs are enqueued with the producer's rights and done. A job that the program rejects is a dead letter."""
    await stack.are_billed(*[stack.enqueue(amount="1") for _ in range(20)])
    rejected = stack.enqueue(colour="red")

    def given_up() -> bool:
        return rejected in stack.operator("reaper", "dead-letters", "list", "orders/billing", "-o", "json")

    await wait_until(given_up, "the job without an amount is a dead letter")


async def test_workers_with_their_shipped_rights_read_on_after_their_words_were_renewed(stack: Stack) -> None:
    """Every worker has renewed its word three times with the shipped rights. Both read on, and no call was denied."""
    before = stack.words()
    assert len(before) == 2
    seen: dict[str, set[str]] = {name: {word} for name, word in before.items()}

    def renewed() -> bool:
        for name, word in stack.words().items():
            seen.setdefault(name, set()).add(word)
        return all(len(words) > REFRESHES for words in seen.values())

    await wait_until(
        renewed, "every worker has renewed its word", REFRESHES_S, progress=lambda: sorted(map(len, seen.values()))
    )
    had = {name: stack.container_log(name).count("billed") for name in stack.containers("worker")}

    def all_read() -> bool:
        stack.enqueue(amount="1")
        return all(stack.container_log(name).count("billed") > number for name, number in had.items())

    await wait_until(all_read, "every worker has billed another job")
    assert denied(stack.redis("ACL", "LOG")) == []
    assert stack.status()["status"] == "healthy"


def _tokens(status: dict[str, Any]) -> int:
    return sum(int(group["token"]) for group in status["groups"])


async def test_a_holder_is_killed(stack: Stack) -> None:
    """The process of a holder is killed. Another replica takes over, the container starts again, and jobs go on."""
    killed = stack.holder()
    terms = _tokens(stack.status())
    stack.kill(killed)
    jobs = [stack.enqueue(amount="1") for _ in range(10)]

    def another_serves() -> bool:
        status = stack.status()
        return _tokens(status) > terms and status["status"] == "healthy"

    await wait_until(another_serves, "another term has begun, and nothing is wrong")
    await stack.are_billed(*jobs)
    await stack.is_healthy(killed)
    assert stack.inspect(killed)["RestartCount"] == 1


async def test_replicas_and_workers_are_restarted_one_after_the_other(stack: Stack) -> None:
    """A rolling restart of replicas and workers under load. Every job is done at its first delivery."""
    jobs = []
    for service in ("reaper", "worker"):
        for name in stack.containers(service):
            jobs += [stack.enqueue(amount="1") for _ in range(5)]
            stack.restart(name)
            jobs += [stack.enqueue(amount="1") for _ in range(5)]
            await stack.is_healthy(name)
    await stack.are_billed(*jobs)
    assert {tuple(stack.deliveries(job)) for job in jobs} == {(1,)}


async def test_redis_is_restarted(stack: Stack) -> None:
    """Redis restarts with jobs in it. No job is lost, and no other container restarts."""
    counts = {name: stack.inspect(name)["State"]["StartedAt"] for name in stack.containers("reaper")}
    jobs = [stack.enqueue(amount="1") for _ in range(10)]
    stack.compose("restart", "redis")
    for name in stack.containers("redis"):
        await stack.is_healthy(name)
    await stack.are_billed(*jobs, stack.enqueue(amount="1"))
    await wait_until(lambda: stack.status()["status"] == "healthy", "the status is healthy")
    assert {name: stack.inspect(name)["State"]["StartedAt"] for name in counts} == counts


async def test_a_worker_is_killed_for_good(stack: Stack) -> None:
    """A worker is killed for good with jobs in its hands. Another one does them at their second delivery."""
    stack.program.write_text(STANDS_ON_THE_FIRST, encoding="utf-8")
    workers = stack.containers("worker")
    for name in workers:
        stack.restart(name)
        await stack.is_healthy(name)
    jobs = [stack.enqueue(amount="1", stands="1") for _ in range(6)]
    standing: dict[str, list[str]] = {}

    def all_stand() -> bool:
        for name in workers:
            log = stack.container_log(name)
            standing[name] = [job for job in jobs if f"stands with {job}" in log]
        return sum(map(len, standing.values())) == len(jobs)

    await wait_until(all_stand, "every job is in a worker's hands")
    killed = max(workers, key=lambda name: len(standing[name]))
    stack.kill_for_good(killed)
    await stack.are_billed(*standing[killed])
    assert {tuple(stack.deliveries(job)) for job in standing[killed]} == {(2,)}
    stack.compose("up", "--detach", "--wait", "--no-recreate")
    for other in workers:
        if other != killed:  # a crash, after which it comes back by the restart policy
            stack.kill(other)
            await stack.is_healthy(other)
    await stack.are_billed(*jobs)


async def test_it_goes_down_and_nothing_stays(stack: Stack, engine: Engine) -> None:
    """Compose `down`. No container, network or volume of it is left."""
    stack.end()
    label = f"label=com.docker.compose.project={stack.name}"
    left = [
        engine.run("docker", *words, "--quiet", "--filter", label)
        for words in (("ps", "--all"), ("network", "ls"), ("volume", "ls"))
    ]
    assert left == ["", "", ""]


def _issue(folder: Path) -> None:
    """Make an authority, and certificates of the server and of its clients, as compose.tls.yaml names them."""
    folder.mkdir(mode=0o700)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    for name in ("redis", "client"):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.crt")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
    for file in folder.iterdir():
        file.chmod(0o444)


async def test_redis_that_asks_for_certificates_on_another_port(stack: Stack, engine: Engine) -> None:
    """Compose with client certificates and another port.

    All are healthy, jobs are done, and other clients are rejected.
    """
    stack.end()
    _issue(engine.project / "deploy/compose/certificates")
    certificate = ("--tls", "--cacert", "/run/secrets/ca.crt")
    ours = (*certificate, "--cert", "/run/secrets/redis.crt", "--key", "/run/secrets/redis.key")
    with_tls = Stack(engine, ("compose.yaml", "compose.tls.yaml"), ours)
    try:
        with_tls.begin()
        await wait_until(lambda: with_tls.status()["status"] == "healthy", "the status is healthy")
        await with_tls.are_billed(*[with_tls.enqueue(amount="1") for _ in range(5)])
        words = ("redis-cli", "-h", "redis", "-p", "6390", "-e")
        for others in ((), certificate):
            with pytest.raises(AssertionError, match=r"(?i)error|closed|reset|failed"):
                with_tls.compose("exec", "--no-TTY", "redis", *words, *others, "ping")
        assert "PONG" in with_tls.compose("exec", "--no-TTY", "redis", *words, *ours, "ping")
    finally:
        with_tls.end()
