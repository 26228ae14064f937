"""A machine with systemd, set up by docs/deployment.md, with the steps of an administrator and of a shop.

All absolute paths here are inside that machine, which the test makes.
"""

import re
import shlex
from pathlib import Path

from tests.deploy.real.machine import Machine, Running
from tests.deploy.real.trees import authorities, index_variables, kept
from tests.support.waiting import wait_until

CA = "/etc/ssl/certs/ca-certificates.crt"
PYTHON = "/opt/stream-reaper/bin/python"
EXTRAS = "web,telemetry,spark"
MASKED = ("redis-server.service", "docker.service", "docker.socket", "containerd.service")
"""What Debian starts by itself; Redis runs with our configuration instead."""
REDIS_FOLDER = "/var/lib/jobs-redis"
SECRETS = "/srv/secrets"
INSTALLED = {
    "reaper-url": "redis-url",
    "worker-url": "worker-redis-url",
    "pipeline-url": "pipeline-redis-url",
}
"""Files of make_users.py, and their names in /etc/stream-reaper."""
SYSTEMD = ("env", "container=test", "/lib/systemd/systemd", "--show-status=no")


async def install(machine: Machine, project: Path) -> None:
    """Install the project into /opt/stream-reaper, with our network."""
    machine.put(authorities(), CA)
    downloads = kept() / "downloads"
    downloads.mkdir(exist_ok=True)
    variables = [f"{name}={value}" for name, value in ({"PIP_CERT": CA} | index_variables()).items()]
    pip = ("/opt/stream-reaper/bin/pip", "install", "--quiet", "--cache-dir", str(downloads))
    with machine.on("sleep", "infinity", shared=(project, downloads)) as running:
        await running.answers("true")
        running.run("python3", "-m", "venv", "/opt/stream-reaper")
        running.run("env", *variables, *pip, f"{project}[{EXTRAS}]")
        running.run("systemctl", "mask", *MASKED)


class Units:
    """The machine, booted."""

    def __init__(self, running: Running, project: Path) -> None:
        self._running = running
        self._deploy = project / "deploy"

    def run(self, *words: str, check: bool = True) -> str:
        """Return what a command writes."""
        return self._running.run(*words, check=check)

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        self.run("sh", "-c", f"mkdir -p {shlex.quote(str(Path(path).parent))} && printf %s {shlex.quote(text)} >{path}")

    async def set_up(self) -> None:
        """Put everything in its place, start Redis with the shipped configuration, and start the units."""
        await self._running.answers("systemctl", "is-active", "--quiet", "multi-user.target")
        units = [
            str(file) for file in sorted((self._deploy / "systemd").iterdir()) if file.suffix in (".service", ".timer")
        ]
        self.run("cp", *units, "/etc/systemd/system/")
        settings = self._deploy / "systemd/reaper.example.toml"
        self.run("install", "-D", "-m", "0644", str(settings), "/etc/stream-reaper/reaper-orders.toml")
        make_users = str(self._deploy / "redis/make_users.py")
        self.run(PYTHON, make_users, "--config", str(settings), "--host", "127.0.0.1", "--into", SECRETS)
        for made, name in INSTALLED.items():
            self.run("install", "-m", "0600", f"{SECRETS}/{made}", f"/etc/stream-reaper/{name}")
        example = str(self._deploy / "systemd/worker.example.env")
        self.run("install", "-m", "0644", example, "/etc/stream-reaper/worker.env")
        self.run("install", "-D", "-m", "0644", str(self._deploy / "compose/shop.py"), "/srv/jobs/shop.py")
        self.run("install", "-D", "-m", "0600", f"{SECRETS}/users.acl", "/run/secrets/users.acl")
        self.run("mkdir", REDIS_FOLDER)
        server = ("redis-server", str(self._deploy / "redis/redis.conf"))
        self.run("systemd-run", "--quiet", "--unit=jobs-redis", f"--working-directory={REDIS_FOLDER}", *server)
        await self._running.answers("redis-cli", "-e", "ping")
        self.run("systemctl", "daemon-reload")
        self.run("systemctl", "enable", "--now", "reaper@orders", "worker@1", "worker@2")

    def versions(self) -> str:
        """Return what it runs on, for the record."""
        systemd = self.run("systemctl", "--version").splitlines()[0].split(" (")[0]
        redis = re.search(r"v=([\d.]+)", self.run("redis-server", "--version"))
        return f"{systemd}, Python {self.run(PYTHON, '--version').split()[-1]}, Redis {redis[1] if redis else '?'}"

    def shown(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def log(self, unit: str) -> str:
        """Return what a unit has logged."""
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}")

    def redis(self, *words: str, user: str = "admin") -> str:
        """Run a command at the server."""
        url = self.run("cat", f"{SECRETS}/{user}-url").strip()
        return self.run("redis-cli", "-e", "--no-auth-warning", "-u", url, *words).strip()

    def enqueue(self, **fields: str) -> str:
        """Add a job as the user for producers. Return its ID."""
        return self.redis("XADD", "orders", "*", *[word for pair in fields.items() for word in pair], user="producer")

    async def logs(self, unit: str, pattern: str, patience: float = 60.0) -> None:
        """Wait until a unit has logged a line."""
        await wait_until(lambda: re.search(pattern, self.log(unit)), f"{unit} logs {pattern}", patience)

    async def is_active(self, unit: str) -> None:
        """Wait until a unit is up."""
        await wait_until(lambda: self.shown(unit, "ActiveState") == "active", f"{unit} is active")
