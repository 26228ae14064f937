"""The services of deploy/compose/compose.yaml, and the commands that an operator gives there."""

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.deploy.real.engine import Engine
from tests.support.waiting import wait_until

PROJECT = "stream-reaper-test"
KILL_ALL = """\
import os, signal
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        try:
            os.kill(int(name), signal.SIGKILL)
        except ProcessLookupError:
            pass
"""
"""An end of a container's program that nobody asked for: its init ends with it, so the restart policy acts."""


class Stack:
    """The containers of one Compose project.

    ``files`` are those of Compose, in turn, and ``client`` the options with which redis-cli reaches the server.
    """

    def __init__(self, engine: Engine, files: Sequence[str] = ("compose.yaml",), client: Sequence[str] = ()) -> None:
        self._engine = engine
        self._files = [word for file in files for word in ("--file", file)]
        self._client = client
        self._folder = engine.project / "deploy/compose"
        self.program = self._folder / "shop.py"
        """The workers' program, mounted into them: written in place, their next start takes it."""

    name = PROJECT

    # ---- the commands of compose.yaml

    def compose(self, *words: str, check: bool = True) -> str:
        """Run `docker compose` in deploy/compose."""
        named = ("docker", "compose", "--project-name", PROJECT, *self._files)
        return self._engine.run(*named, *words, folder=self._folder, check=check)

    def begin(self) -> None:
        """Make the users, and start all, as the file says at its top."""
        self.compose("run", "--rm", "make-users")
        self.compose("up", "--detach", "--wait")

    def end(self) -> None:
        """Remove everything."""
        self.compose("--profile", "tools", "down", "--volumes", "--remove-orphans", "--timeout", "1", check=False)

    def operator(self, *words: str, check: bool = True) -> str:
        """Run a command of an operator."""
        return self.compose("run", "--rm", "--no-TTY", "operator", *words, check=check)

    def status(self) -> dict[str, Any]:
        """Return the output of `reaper status -o json`, also if it reports something degraded."""
        answer: dict[str, Any] = json.loads(self.operator("reaper", "status", "-o", "json", check=False))
        return answer

    # ---- containers

    def containers(self, service: str) -> list[str]:
        """Return the names of a service's containers."""
        return sorted(self.compose("ps", "--all", "--format", "{{.Name}}", service).split())

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what the engine knows of a container."""
        (found,) = json.loads(self._engine.run("docker", "inspect", container))
        known: dict[str, Any] = found
        return known

    def holder(self) -> str:
        """Return the container of a replica that holds a group, or ''."""
        holding = [one["host"] for one in self.status()["replicas"] if one["held"] and one["live"]]
        return next(
            (name for name in self.containers("reaper") if self.inspect(name)["Id"].startswith(tuple(holding))), ""
        )

    async def is_healthy(self, container: str) -> None:
        """Wait until a container is."""

        def healthy() -> bool:
            return bool(self.inspect(container)["State"].get("Health", {}).get("Status") == "healthy")

        await wait_until(healthy, f"{container} is healthy")

    def kill(self, container: str) -> None:
        """Have its program die of SIGKILL."""
        self._engine.run("docker", "exec", container, "python", "-c", KILL_ALL, check=False)

    def kill_for_good(self, container: str) -> None:
        """Have it die of SIGKILL, and not be started again."""
        self._engine.run("docker", "kill", container)

    def container_log(self, container: str) -> str:
        """Return what a container has logged since it was made."""
        return self._engine.run("sh", "-c", 'docker logs "$0" 2>&1', container)

    def restart(self, container: str) -> None:
        """Stop it with the file's grace, and start it."""
        grace = re.search(r"(\d+)", str(self.inspect(container)["Config"].get("StopTimeout") or 10))
        self._engine.run("docker", "restart", "--time", grace[1] if grace else "10", container)

    # ---- jobs, as a shop would send them

    def redis(self, *words: str, user: str = "admin") -> str:
        """Run a command at the server as one of the users that make_users.py made."""
        url = (self._folder / f"secrets/{user}-url").read_text(encoding="utf-8").strip()
        client = ("redis-cli", "-e", "--no-auth-warning", *self._client, "-u", url)
        return self.compose("exec", "--no-TTY", "redis", *client, *words).strip()

    def enqueue(self, **fields: str) -> str:
        """Add a job as the user for producers. Return its ID."""
        return self.redis("XADD", "orders", "*", *[word for pair in fields.items() for word in pair], user="producer")

    def logged(self, service: str = "worker") -> str:
        """Return what a service's containers have logged since they were made."""
        return self.compose("logs", "--no-log-prefix", service)

    def deliveries(self, job: str) -> list[int]:
        """Return the counted deliveries of a job that were billed, in the order of the log."""
        return [int(number) for number in re.findall(rf"billed {re.escape(job)}, delivery (\d+)", self.logged())]

    async def are_billed(self, *jobs: str) -> None:
        """Wait until each job is."""

        def missing() -> list[str]:
            log = self.logged()
            return [job for job in jobs if f"billed {job}," not in log]

        await wait_until(lambda: not missing(), f"{len(jobs)} jobs are billed", progress=missing)

    def words(self) -> dict[str, str]:
        """Return the words of the workers in the group settings, by consumer."""
        settings = "{orders}:group:billing"  # other values there are not text
        names = [name for name in self.redis("HKEYS", settings).splitlines() if name.startswith("registration:")]
        return dict(zip(names, self.redis("HMGET", settings, *names).splitlines(), strict=True))


def denied(log: str) -> list[str]:
    """Return what an ACL log says was denied, but for how redis-py introduces itself, which no role needs."""
    return [one for one in re.findall(r"^object\n(.*)$", log, re.MULTILINE) if one != "client|setinfo"]
