"""Folders with a small Debian for the machines of tests. They are made once, by debootstrap, and kept.

They lie below the folder that the variable STREAM_REAPER_TREES names, by default in the user's cache.
"""

import hashlib
import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

VARIABLE = "STREAM_REAPER_TREES"


class NotHereError(Exception):
    """This machine cannot run it. The message says why."""


class Tree(NamedTuple):
    """The content of a tree."""

    name: str
    suite: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder of the tree. Another list of packages is another tree."""
        digest = hashlib.sha256(" ".join((self.suite, *self.packages)).encode()).hexdigest()
        return kept() / f"{self.name}-{digest[:8]}"

    def made(self) -> Path:
        """Return its folder, made now where it is not there. Raises NotHereError where it cannot be."""
        if not self.folder.is_dir():
            self._bootstrap()
        return self.folder

    def _bootstrap(self) -> None:
        unfinished = self.folder.with_suffix(".unfinished")
        packages, log = kept() / "packages", self.folder.with_suffix(".log")
        packages.mkdir(parents=True, exist_ok=True)
        if unfinished.exists():
            shutil.rmtree(unfinished)
        # It mounts /proc into the tree. In namespaces of its own no mount stays.
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "debootstrap", "--variant=minbase"]
        words += [f"--cache-dir={packages}", f"--include={','.join(self.packages)}", self.suite, str(unfinished)]
        with log.open("w") as output:
            done = subprocess.run(words, stdout=output, stderr=output, check=False)
        if done.returncode:
            raise NotHereError(f"debootstrap could not make a Debian ({self.suite}) here: see {log}")
        unfinished.rename(self.folder)


HOST = Tree(
    "host",
    "trixie",
    (
        "ca-certificates", "dbus", "default-jre-headless", "docker-cli", "docker-compose", "docker.io", "iproute2",
        "iptables", "libnss-systemd", "libpam-systemd", "procps", "python3", "python3-venv", "redis-server", "systemd",
        "systemd-sysv",
    ),
)  # fmt: skip
"""A machine: an engine with Compose, and systemd."""
IMAGE = Tree("image", "bookworm", ("ca-certificates", "python3", "python3-pip", "python3-venv", "redis-server"))
"""What stands in for the images that a registry would give."""


def authorities() -> Path:
    """Return the file of certificates that this machine trusts, because programs in trees use the same package
    indexes."""
    paths = ssl.get_default_verify_paths()
    return Path(paths.cafile or paths.openssl_cafile)


def index_variables() -> dict[str, str]:
    """Return the variables that say where pip finds packages, as they are set here."""
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
    return {name: os.environ[name] for name in names if name in os.environ}


def kept() -> Path:
    named = os.environ.get(VARIABLE)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(cache) / "stream-reaper/trees"
