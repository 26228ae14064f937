"""Builds the Spark session. It is embedded by default, and unchanged on a cluster or through Spark Connect.

The arguments ``remote`` and ``master`` choose the place of Spark. Without them, ``spark-submit`` or Spark's own
environment (``SPARK_REMOTE``, ``MASTER``) chooses it, and then ``spark-defaults.conf``. The default is ``local[*]``.
"""

import logging
import os
import pwd
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PySparkImportError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.spark.java import JARS, embedded_jars, java_environment
from workers.protocol.address import without_logins
from workers.protocol.errors import ConfigurationError

DEFAULT_HEAP = "2g"
_LEAST_HEAP_MB = 450
"""With less, Spark does not start, and prints stack traces."""
_MANY = 4096
"""Rows that are spread over all cores."""
_MASTER = re.compile(r"local|spark://|k8s://|yarn$")
_LOOPBACK = "127.0.0.1"
_HAND_OVER_S = "120"
"""How long Java and Python wait for each other to hand rows over. Spark's 15 s are little on a busy machine."""

EVERYWHERE: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # other tools misread Spark's own default, INT96
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # an entry may have a field twice
}
"""Settings of every session. All of them can be set on a running session, also on a remote one."""

_CLASSIC: Mapping[str, str] = {
    **EVERYWHERE,
    "spark.ui.showConsoleProgress": "false",
    "spark.python.authenticate.socketTimeout": f"{_HAND_OVER_S}s",
    # Spark notes for each column which line of Python made it. That costs five more calls to Java, for our own errors.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.sql.ui.explainMode": "simple",  # Spark writes down the plan of each query for its pages
}
_EMBEDDED: Mapping[str, str] = {
    "spark.ui.enabled": "false",  # opens a port
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.sql.catalogImplementation": "in-memory",  # Hive is not on the class path
}
_LOG4J = Path(__file__).with_name("log4j2.properties")


class SparkMissingError(ConfigurationError):
    """Spark cannot be started or reached. The message gives advice."""


def build_session(
    master: str | None = None,
    remote: str | None = None,
    app: str = "stream-reaper",
    heap: str = DEFAULT_HEAP,
    conf: Mapping[str, str] | None = None,
    java_options: str = "",
) -> SparkSession:
    """Return the session of this process. An existing one is returned unchanged, except for `EVERYWHERE` and ``conf``.

    ``heap`` is the driver's memory, as Java writes it. It counts only if this call starts the driver. Raises
    JavaMissingError, SparkMissingError or ConfigurationError.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs connections, and batches that failed, at length
    if remote and master:
        raise ConfigurationError(
            "master and remote are both set. A Spark Connect server has its own master, so remove master."
        )
    if remote or "SPARK_REMOTE" in os.environ:
        session = _connect(remote or os.environ["SPARK_REMOTE"], app)
    else:
        session = _start(master, app, _classic_conf(master, heap, java_options) | dict(conf or {}))
    for name, value in {**EVERYWHERE, **(conf or {})}.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def cores_of(session: SparkSession) -> int:
    """Return how many tasks Spark runs at once. On a cluster, that is the number of registered executors' cores."""
    local = re.fullmatch(r"local\[(\d+|\*).*\]", session.conf.get("spark.master", "") or "")
    if local:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])
    last = 0
    for _ in range(2):  # the first job waits for an executor, and meanwhile the others register
        places = session.range(0, _MANY).select(F.spark_partition_id().alias("place"))
        last = places.agg(F.max("place")).collect()[0][0]
    return 1 + int(last)


def _connect(remote: str, app: str) -> SparkSession:
    try:
        if (server := urlsplit(remote)).hostname:  # Spark itself would try for ten minutes
            socket.create_connection((server.hostname, server.port or 15002), timeout=5).close()
        return SparkSession.builder.remote(remote).appName(app).getOrCreate()
    except PySparkImportError as error:
        raise SparkMissingError(
            f"Spark Connect needs more packages ({_first_line(error)}). Run pip install '.[connect]' in your clone."
        ) from error
    except Exception as error:
        known = (PySparkException, ValueError, OSError)
        if not isinstance(error, known) and not type(error).__module__.startswith("grpc"):
            raise
        where = without_logins(remote.partition(";")[0])  # a token may follow
        why = _first_line(error).replace(remote, where)
        raise SparkMissingError(
            f"no Spark Connect server at {where}: {why.rstrip('.')}. Start it, or correct spark_remote."
        ) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):  # its own words only name the call
        return re.sub(r"^[^:]*: (?:[\w.]+: )?", "", str(error).strip()).splitlines()[0]
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _start(master: str | None, app: str, conf: Mapping[str, str]) -> SparkSession:
    if master and not _MASTER.match(master):  # Java would end with a stack trace
        raise ConfigurationError(
            f"spark_master {master!r} is unknown to Spark. Write local[*], local[4], spark://host:7077, k8s://… "
            "or yarn."
        )
    if not is_submitted():
        _check_user()
        os.environ.update(java_environment())
        if is_embedded(master):
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
            os.environ[JARS] = embedded_jars()
            # By default, Spark runs `python3` of the PATH, which is not that of an environment that is not activated.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", _HAND_OVER_S)
    builder = SparkSession.builder.appName(app)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        return (builder.master(master) if master else builder).getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        where = f" on {master}" if master else ""
        raise SparkMissingError(f"Spark did not start{where}: {_first_line(error)}") from error


def _classic_conf(master: str | None, heap: str, java_options: str) -> dict[str, str]:
    if is_submitted():
        return dict(EVERYWHERE)
    _check_heap(heap)
    options = f"-Xss8m -Dlog4j2.configurationFile={_LOG4J.as_uri()} {java_options}".strip()
    driver = {"spark.driver.memory": heap, "spark.driver.extraJavaOptions": options}
    return {**_CLASSIC, **driver, **(_EMBEDDED if is_embedded(master) else {})}


def _check_user() -> None:
    """Raise ConfigurationError under a user without a name, because Java has no home there, and Hadoop no login."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise ConfigurationError(
            f"Spark does not start under a user without a name (UID {os.geteuid()}). Add it to /etc/passwd, for "
            "example with useradd in the image, or run as another user."
        ) from None


def _check_heap(heap: str) -> None:
    """Raise ConfigurationError if ``heap`` is no amount of memory that Spark starts with."""
    found = re.fullmatch(r"([1-9]\d{0,8})([mMgG])", heap)
    if not found:
        raise ConfigurationError(f"spark_memory {heap!r} is not an amount of memory. Write it as 1g or 1500m.")
    if int(found[1]) * (1 if found[2] in "mM" else 1024) < _LEAST_HEAP_MB:
        raise ConfigurationError(f"spark_memory {heap!r} is too little for Spark. Write {_LEAST_HEAP_MB}m or more.")


def is_submitted() -> bool:
    """Return whether ``spark-submit`` has started the driver, because then we cannot choose its settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_embedded(master: str | None) -> bool:
    """Tell whether everything will run in this process and its children."""
    return (master or os.environ.get("MASTER") or _default_master() or "local").startswith("local")


def _default_master() -> str | None:
    """Return the master in Spark's own defaults."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8") if folder else ""
    except OSError:
        return None
    found = re.search(r"^\s*spark\.master(?:\s*[=:]\s*|\s+)(\S+)", text, re.MULTILINE)
    return found[1] if found else None
