"""Reads deploy/: which processes it starts, with which settings, and how long they may take to end."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes import ROOT

DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes/base"
OVERLAYS = DEPLOY / "kubernetes/overlays"
DOCKERFILE = DEPLOY / "container/Dockerfile"
COMPOSE = DEPLOY / "compose/compose.yaml"
SETTINGS_FOLDER = "/etc/stream-reaper/"


def program(name: str, package: str) -> str:
    """Return the path of a program that Debian has. Skips where it is missing; in continuous integration it may not."""
    found = shutil.which(name)
    if found:
        return found
    missing = f"no {name}: apt-get install -y {package}"
    if os.environ.get("CI"):
        raise RuntimeError(missing)
    pytest.skip(missing)


def documents(file: Path) -> list[Any]:
    """Return what a YAML file holds."""
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def document(file: Path) -> Any:
    """Return the one thing that a YAML file holds."""
    (only,) = documents(file)
    return only


def seconds(duration: str | int) -> float:
    """Read ``45s``, ``1m30s``, ``70``."""
    units = {"": 1, "s": 1, "m": 60, "h": 3600, "ms": 0.001}
    parts = re.findall(r"(\d+)(ms|[smh]?)", str(duration))
    return sum(int(number) * units[unit] for number, unit in parts)


@dataclass(frozen=True)
class Started:
    """A process that one of the assets starts."""

    place: str
    argv: list[str]
    environment: dict[str, str]
    settings_file: Path | None
    grace_s: float
    """From the signal to stop until it is killed."""
    probes: dict[str, Any] = field(default_factory=dict)

    @property
    def program(self) -> str:
        """``reaper`` or ``worker``."""
        return Path(self.argv[0]).name


# --- container ----------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, in turn, with their words on one line."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines) if name]


def image_base() -> str:
    """Return the name of the image that the Dockerfile builds on."""
    (base,) = [rest.partition("=")[2] for name, rest in instructions() if name == "ARG" and rest.startswith("BASE=")]
    return base


def image_environment() -> dict[str, str]:
    """Return the variables that the image sets."""
    return dict(word.split("=", 1) for name, rest in instructions() if name == "ENV" for word in shlex.split(rest))


# --- compose ------------------------------------------------------------------------------------------------


def compose_processes() -> Iterator[Started]:
    """Return what compose starts of ours and keeps running."""
    whole = document(COMPOSE)
    for name, service in whole["services"].items():
        if service["image"].startswith("stream-reaper") and "profiles" not in service:
            sources = [whole["configs"][config["source"]]["file"] for config in service.get("configs", [])]
            yield Started(
                f"compose {name}",
                service["command"],
                image_environment() | {key: str(value) for key, value in service["environment"].items()},
                (COMPOSE.parent / sources[0]) if sources else None,
                seconds(service["stop_grace_period"]),
            )


# --- kubernetes ---------------------------------------------------------------------------------------------


def kubernetes_processes() -> Iterator[Started]:
    """Return the containers of the base, each with the settings of the base and of every overlay."""
    for file in sorted(BASE.glob("*/deployment.yaml")):
        pod = document(file)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        own = {one["name"]: str(one.get("value", "a-name")) for one in container["env"]}
        for settings in sorted((DEPLOY / "kubernetes").rglob(f"{container['name']}.toml")):
            yield Started(
                f"kubernetes {settings.relative_to(DEPLOY / 'kubernetes')}",
                container["args"],
                image_environment() | own,
                settings,
                pod["terminationGracePeriodSeconds"],
                {name: container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")},
            )


# --- systemd ------------------------------------------------------------------------------------------------


def unit(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit, each with its values."""
    lines = (DEPLOY / "systemd" / name).read_text(encoding="utf-8").splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def example_environment() -> dict[str, str]:
    """Return the variables of worker.example.env."""
    lines = (DEPLOY / "systemd/worker.example.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def systemd_processes() -> Iterator[Started]:
    """Return what the units start, as instance 1, with the example settings."""
    for name in ("reaper", "worker"):
        settings = unit(f"{name}@.service")
        variables = dict(word.split("=", 1) for line in settings["Environment"] for word in line.split())
        if name == "worker":
            variables |= example_environment()
        words = settings["ExecStart"][0].replace("${PROGRAM}", variables.pop("PROGRAM", "")).split()
        yield Started(
            f"systemd {name}",
            words,
            variables,
            DEPLOY / "systemd/reaper.example.toml" if name == "reaper" else None,
            seconds(settings["TimeoutStopSec"][0]),
        )


PROCESSES = [*compose_processes(), *kubernetes_processes(), *systemd_processes()]
