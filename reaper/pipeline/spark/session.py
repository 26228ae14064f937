"""Builds the Spark session: embedded by default, and unchanged on a cluster or through Spark Connect.

Where Spark runs is decided by, in this order: ``remote`` and ``master`` given here, ``spark-submit`` or Spark's own
environment (``SPARK_REMOTE``, ``MASTER``) and ``spark-defaults.conf``; where none of them says, ``local[*]``.
"""

import logging
import os
import pwd
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PySparkImportError
from pyspark.sql import SparkSession

from reaper.pipeline.spark.java import cache_folder, find_java, java_home, write_once
from workers.protocol.address import without_logins
from workers.protocol.errors import ConfigurationError

DEFAULT_HEAP = "2g"
_LEAST_HEAP_MB = 450
"""What Spark asks for; with less, Java answers with tracebacks."""
_HEAP_ANYWHERE_MB = 2_048
"""The default is let be on small machines, too: Java reserves it, and takes what it needs."""
_MASTER = re.compile(r"local|spark://|k8s://|yarn$")
_MASTERS = "write local[*], local[4], spark://host:7077, k8s://… or yarn"
_LOOPBACK = "127.0.0.1"

EVERYWHERE: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default is INT96: other tools read it as nanoseconds, and Spark then refuses what they wrote.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # Entries may have a field twice, and JSON a key: no reason for a query to fail.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
"""What every session of ours needs; all of it can be set on a running session, also on a remote one."""

_QUIET: Mapping[str, str] = {"spark.ui.showConsoleProgress": "false"}

_UNTRACED: Mapping[str, str] = {
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""Spark notes for each column which line of Python made it, to name that line in errors. These lines are ours and not
our users', and noting them doubles what it takes to put a question into words: five more calls to Java a column.
"""

_EMBEDDED: Mapping[str, str] = {
    "spark.ui.enabled": "false",  # opens a port
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
}

_LOG4J = """\
# Warnings of Spark are for those who run Spark; what concerns our users is said by us.
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p spark.%c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# Why no context came to be is what our caller is told, and raises or says.
logger.context.name = org.apache.spark.SparkContext
logger.context.level = off
# Each failed attempt of a query is told by our own supervisor, in one line; so is what failed of it.
logger.streams.name = org.apache.spark.sql.execution.streaming
logger.streams.level = off
logger.tasks.name = org.apache.spark.executor.Executor
logger.tasks.level = off
logger.stages.name = org.apache.spark.scheduler.TaskSetManager
logger.stages.level = off
"""


_HAND_OVER_S = 120


class SparkMissingError(ConfigurationError):
    """Spark cannot be started or reached. The message says what to do."""


def build_session(
    master: str | None = None,
    remote: str | None = None,
    app: str = "stream-reaper",
    heap: str = DEFAULT_HEAP,
    conf: Mapping[str, str] | None = None,
    java_options: str = "",
) -> SparkSession:
    """Return the session of this process; an existing one is returned as it is, but for the settings all of ours share.

    ``heap`` is the driver's memory, as Java writes it; it counts only where this call starts the driver. ``conf`` is
    stronger than what is set here. Raises JavaMissingError, SparkMissingError or ConfigurationError.
    """
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)  # and of a batch that failed, at length
    if remote and master:
        raise ConfigurationError("give either master or remote: a Spark Connect server has its own master.")
    if remote or "SPARK_REMOTE" in os.environ:
        session = _connect(remote or os.environ["SPARK_REMOTE"], app)
    else:
        session = _start(master, app, _classic_conf(master, heap, java_options) | dict(conf or {}))
    for name, value in {**EVERYWHERE, **_settable(session, conf or {})}.items():
        session.conf.set(name, value)
    return session


@contextmanager
def spark_session(
    master: str | None = None, remote: str | None = None, app: str = "stream-reaper", heap: str = DEFAULT_HEAP
) -> Iterator[SparkSession]:
    """Build a session, and stop it at the end of the block."""
    session = build_session(master, remote, app, heap)
    try:
        yield session
    finally:
        session.stop()


def _connect(remote: str, app: str) -> SparkSession:
    try:
        return SparkSession.builder.remote(remote).appName(app).getOrCreate()
    except PySparkImportError as error:
        raise SparkMissingError(
            f"Spark Connect needs more packages ({_first_line(error)}): run pip install '.[connect]' in your clone."
        ) from error
    except Exception as error:
        if not _is_about_contact(error):
            raise
        where = without_logins(remote.partition(";")[0])  # a token may follow
        why = _first_line(error).replace(remote, where)
        raise SparkMissingError(f"no Spark Connect server at {where}: {why}") from error


def _is_about_contact(error: Exception) -> bool:
    return isinstance(error, (PySparkException, ValueError)) or type(error).__module__.startswith("grpc")


def _first_line(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):  # its own words only say what was called
        return re.sub(r"^[^:]*: (?:[\w.]+: )?", "", str(error).strip()).splitlines()[0]
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _start(master: str | None, app: str, conf: Mapping[str, str]) -> SparkSession:
    if master and not _MASTER.match(master):  # Java would end with a stack, and not say to us why
        raise ConfigurationError(f"master {master!r} is none that Spark knows: {_MASTERS}.")
    _prepare_environment(master)
    builder = SparkSession.builder.appName(app)
    for name, value in conf.items():
        builder = builder.config(name, value)
    if master:
        builder = builder.master(master)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        raise SparkMissingError(f"Spark did not start: {_first_line(error)}") from error


def _prepare_environment(master: str | None) -> None:
    """Set what Spark's launcher reads from the environment, where nobody has."""
    if is_submitted():
        return
    _check_user()
    os.environ["JAVA_HOME"] = str(java_home())
    if is_embedded(master):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        # Spark's workers are `python3` of the PATH otherwise: not that of an environment that is not activated.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # How long Java and this process wait for each other to hand rows over: 15 s is little on a busy machine.
        os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", str(_HAND_OVER_S))


def _classic_conf(master: str | None, heap: str, java_options: str) -> dict[str, str]:
    if is_submitted():
        return dict(EVERYWHERE)
    check_heap(heap)
    options = f"-Xss8m -Dlog4j2.configurationFile={_log4j_file().as_uri()} {java_options}".strip()
    waits = {"spark.python.authenticate.socketTimeout": f"{_HAND_OVER_S}s"}
    conf = {
        **EVERYWHERE,
        **_QUIET,
        **_UNTRACED,
        **waits,
        "spark.driver.memory": heap,
        "spark.driver.extraJavaOptions": options,
    }
    return conf | dict(_EMBEDDED) if is_embedded(master) else conf


def check_session(heap: str, named: str = "heap") -> None:
    """Refuse, before anything else is done, what `build_session` would. Raises JavaMissingError, ConfigurationError."""
    if not (is_submitted() or "SPARK_REMOTE" in os.environ):
        _check_user()
        check_heap(heap, named)
        find_java()


def _check_user() -> None:
    """Raise ConfigurationError under a user without a name: Java has no home there, and Hadoop no login."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise ConfigurationError(
            f"Spark does not start under a user without a name (UID {os.geteuid()}): add it to /etc/passwd, for "
            "example with useradd in the image, or run as another user."
        ) from None


def check_heap(heap: str, named: str = "heap") -> None:
    """Refuse what is no amount of memory, or one that Java or Spark cannot start with. Raises ConfigurationError.

    ``named`` is what it is called where it comes from: a setting, or an option.
    """
    found = re.fullmatch(r"([1-9]\d{0,8})([mMgG])", heap)
    if not found:
        raise ConfigurationError(f"{named} {heap!r} is no amount of memory: write it as 1g or 1500m.")
    megabytes = int(found[1]) * (1 if found[2] in "mM" else 1024)
    if megabytes < _LEAST_HEAP_MB:
        raise ConfigurationError(f"{named} {heap!r} is too little: Spark does not start below {_LEAST_HEAP_MB}m.")
    most_mb = max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20, _HEAP_ANYWHERE_MB)
    if megabytes > most_mb:
        raise ConfigurationError(f"{named} {heap!r} is more than this machine has: write {most_mb}m or less.")


def _log4j_file() -> Path:
    return write_once(cache_folder() / "log4j2.properties", _LOG4J)


def _settable(session: SparkSession, conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if session.conf.isModifiable(name)}


def is_submitted() -> bool:
    """Tell whether ``spark-submit`` has started the driver already: its settings are no longer ours to choose."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_embedded(master: str | None) -> bool:
    """Tell whether everything will run in this process and its children."""
    return (master or _master_elsewhere() or "local").startswith("local")


def _master_elsewhere() -> str | None:
    """Return the master that Spark itself will find: in the environment, or in its defaults."""
    return os.environ.get("MASTER") or _defaults().get("spark.master")


def _defaults() -> dict[str, str]:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if not folder:
        return {}
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = re.findall(r"^\s*(spark\.\S+?)(?:\s*[=:]\s*|\s+)(.*?)\s*$", text, re.MULTILINE)
    return dict(pairs)
