"""A real Spark cluster of the tests' own: a standalone master, two workers, and a Spark Connect server on it."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from reaper.pipeline.spark.java import java_environment
from tests.support.processes import Processes, Running
from tests.support.servers import free_port

SPARK_HOME = Path(pyspark.__file__).parent
WORKER_MB = 1100
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compile once, and with one thread less: most of what a test calls is called a few times."""
PATIENT = {
    "spark.network.timeout": "3600s",
    "spark.sql.broadcastTimeout": "3600",
    "spark.python.authenticate.socketTimeout": "3600s",
}
"""Spark's own limits are of wall-clock seconds: none of them ends a test because its machine is slow."""
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SHARE = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"}
"""What one application takes: one executor on each worker, so that two applications fit."""


def environment(folder: Path) -> dict[str, str]:
    """Return what every process of the cluster is started with."""
    return {
        **java_environment(),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOG_DIR": str(folder / "log"),
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dspark.worker.timeout=3600 -Dspark.network.timeout=3600s",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }


class Cluster:
    """The processes of a cluster; `Processes` ends them."""

    def __init__(self, processes: Processes, folder: Path, env: Mapping[str, str]) -> None:
        self._processes = processes
        self.env: Mapping[str, str] = {**environment(folder), **env}
        self.settings: Mapping[str, str] = {**self.env, **self._defaults(folder)}
        """Environment of programs that use the cluster: Spark's own defaults, and its Python."""
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.remote = f"sc://127.0.0.1:{free_port()}"

    async def start(self) -> None:
        """Start master and workers; return when both workers have registered."""
        port = self.master.rpartition(":")[2]
        place = ("--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        master = self._start("spark-class", "org.apache.spark.deploy.master.Master", *place, name="master")
        await master.prints(r"Starting Spark master")
        size = ("-c", "2", "-m", f"{WORKER_MB}m", "--host", "127.0.0.1", "--webui-port", "0")
        workers = [
            self._start(
                "spark-class", "org.apache.spark.deploy.worker.Worker", *size, self.master, name=f"worker{number}"
            )
            for number in (1, 2)
        ]
        for worker in workers:
            await worker.prints(r"Successfully registered with master")

    @staticmethod
    def _defaults(folder: Path) -> dict[str, str]:
        conf = folder / "conf"
        conf.mkdir()
        lines = [f"{name} {value}" for name, value in {**SHARE, **PATIENT, **LOOPBACK}.items()]
        (conf / "spark-defaults.conf").write_text("\n".join(lines))
        return {"SPARK_CONF_DIR": str(conf), "JDK_JAVA_OPTIONS": QUICK_JAVA}

    async def start_connect(self) -> None:
        """Start a Spark Connect server whose jobs run on the workers; return when it listens."""
        port = self.remote.rpartition(":")[2]
        conf = {
            "spark.connect.grpc.binding.port": port,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Xss8m",
            **SHARE,
            **PATIENT,
            **LOOPBACK,
            "spark.ui.enabled": "false",
        }
        flags = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        server = self._start(
            "spark-submit",
            *("--master", self.master),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(*flags, "spark-internal"),
            name="connect",
            memory="640m",
        )
        await server.prints(r"Spark Connect server started at")

    def _start(self, program: str, *words: str, name: str, memory: str = "256m") -> Running:
        env = {**self.env, "SPARK_DAEMON_MEMORY": memory}  # spark-submit takes it for a Connect server's, too
        return self._processes.start(str(SPARK_HOME / "bin" / program), *words, env=env, name=name)
