"""An engine for containers, either the one that answers here, or one in our own machine without a registry."""

import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.deploy.assets import COMPOSE, document, image_base
from tests.deploy.real.machine import CLEAN, Machine, Running, require_machines
from tests.deploy.real.trees import HOST, IMAGE, NotHereError, authorities, index_variables

TAG = document(COMPOSE)["services"]["reaper"]["image"]
BUILD = ("docker", "build", "--file", "deploy/container/Dockerfile", "--tag", TAG, "--network", "host", ".")
CA = "/etc/ssl/certs/ca-certificates.crt"
STAND_IN = """\
FROM tree
COPY authorities.crt {ca}
RUN ln -s python3 /usr/bin/python && mkdir /data && chown 999:999 /data
ENV {variables}
WORKDIR /data
"""
"""Stands in for the images of Python and of Redis."""


class Engine:
    """Runs commands where an engine answers them. The project lies in ``project``, a copy."""

    def __init__(self, project: Path, machine: Running | None) -> None:
        self.project = project
        self._machine = machine

    def run(self, *words: str, folder: Path | None = None, check: bool = True) -> str:
        """Return what a command writes. Raises AssertionError with that where it fails."""
        folder = folder or self.project
        if self._machine:
            return self._machine.run(*words, folder=folder, check=check)
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def has_engine() -> bool:
    """Tell whether an engine with Compose answers here."""
    asked = (["docker", "info"], ["docker", "compose", "version"])
    return shutil.which("docker") is not None and not any(
        subprocess.run(words, capture_output=True, check=False).returncode for words in asked
    )


@asynccontextmanager
async def started_engine(project: Path, folder: Path) -> AsyncIterator[Engine]:
    """Yield an engine that has the image. Raises NotHereError where there can be none."""
    if has_engine():
        engine = Engine(project, None)
        engine.run(*BUILD)
        yield engine
        return
    try:
        require_machines()
    except NotHereError as error:
        raise NotHereError(f"no Docker engine with Compose answers, and {error}") from error
    machine = Machine(HOST, folder)
    data = folder / "data"
    data.mkdir()
    try:
        # An image is built in our network, where the package index is. Containers run in their own network.
        with _daemon(machine, data, project, network=True) as running:
            await running.answers("docker", "info")
            _import(running, project)
            running.run(*BUILD, folder=project)
        with _daemon(machine, data, project, network=False) as running:
            await running.answers("docker", "info")
            yield Engine(project, running)
    finally:
        machine.remove()


@contextmanager
def _daemon(machine: Machine, data: Path, project: Path, *, network: bool) -> Iterator[Running]:
    words = ["docker-init", "--", "dockerd", f"--data-root={data}", "--cgroup-parent={cgroup}"]
    # Our network is not changed.
    words += ["--bridge=none", "--iptables=false"] if network else []
    with machine.on(*words, shared=(data, project), network=network) as running:
        try:
            yield running
        finally:
            # Later lines count from here, and containers leave none of theirs in the kernel.
            if running.first is not None:
                end = "kill -TERM $(pidof dockerd) && tail --pid=$(pidof dockerd) -f /dev/null"
                running.run("sh", "-c", end, check=False)


def _import(running: Running, project: Path) -> None:
    """Make the images that a registry would give."""
    left_out = ("./var/cache/apt", "./var/lib/apt/lists", "./usr/share/doc", "./usr/share/man")
    tree = ["tar", "-C", str(IMAGE.made()), *(f"--exclude={path}" for path in left_out), "-c", "."]
    _pipe(tree, [*running.prefix(Path("/")), "docker", "import", "-", "tree:latest"])
    variables = " ".join(f'{name}="{value}"' for name, value in ({"PIP_CERT": CA} | index_variables()).items())
    context = project / ".stand-in"
    context.mkdir()
    shutil.copyfile(authorities(), context / "authorities.crt")
    (context / "Dockerfile").write_text(STAND_IN.format(ca=CA, variables=variables))
    python, redis = image_base(), document(COMPOSE)["services"]["redis"]["image"]
    running.run("docker", "build", "--network", "host", "--tag", python, "--tag", redis, str(context))
    shutil.rmtree(context)


def _pipe(first: Sequence[str], second: Sequence[str]) -> None:
    with subprocess.Popen(first, stdout=subprocess.PIPE) as source:
        done = subprocess.run(second, env=CLEAN, stdin=source.stdout, capture_output=True, text=True, check=False)
    if source.returncode or done.returncode:
        raise AssertionError(f"{' '.join(second)}: {done.stderr}")


def versions(engine: Engine) -> str:
    """Return what the containers run on, for the record."""
    docker = engine.run("docker", "version", "--format", "{{.Server.Version}}").strip()
    compose = engine.run("docker", "compose", "version", "--short").strip()
    python = engine.run("docker", "run", "--rm", "--network", "none", TAG, "python", "--version").split()[-1]
    redis = document(COMPOSE)["services"]["redis"]["image"]
    of_redis = engine.run("docker", "run", "--rm", "--network", "none", redis, "redis-server", "--version")
    number = re.search(r"v=([\d.]+)", of_redis)
    return f"Docker {docker}, Compose {compose}, Python {python}, Redis {number[1] if number else '?'}"
