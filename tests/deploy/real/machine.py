"""A machine in namespaces, made of a tree with a folder for its writes, its own processes, and, if asked, its own
network.

It ends with the process that started it, in every case. No process and no mount of it stays.
"""

import os
import select
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.real.trees import NotHereError, Tree
from tests.support.waiting import wait_until

ENTER = Path(__file__).with_name("enter.sh")
NEEDED = ("debootstrap", "ip", "mount", "nsenter", "pivot_root", "setpriv", "tar", "unshare")
NAMESPACES = ("--mount", "--pid", "--uts", "--ipc")
CGROUPS = Path("/sys/fs/cgroup")
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
"""The environment of what runs in a machine: nothing of ours."""
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


def require_machines() -> None:
    """Raise NotHereError where there can be no machines."""
    if os.name != "posix" or os.geteuid() != 0:
        raise NotHereError("machines in namespaces need root, which this is not")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise NotHereError(f"machines in namespaces need {', '.join(missing)}, which is not on the PATH")
    tried = ["unshare", *NAMESPACES, "--net", "--cgroup", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        raise NotHereError("this machine lets even root make no namespaces")


class Running:
    """A machine that is on."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def output(self) -> str:
        """The output of its first process so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def first(self) -> int | None:
        """The process ID of its first process, as seen from outside, or None."""
        try:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        except FileNotFoundError:
            return None
        return int(children[0]) if children else None

    def end(self) -> None:
        """End every process of it."""
        first = self.first
        waited = os.pidfd_open(first) if first is not None else None
        self._process.kill()
        self._process.wait()
        if waited is not None:
            select.select([waited], [], [])  # its end is that of all others
            os.close(waited)

    def prefix(self, folder: Path) -> list[str]:
        """Return the words that have a command run in it, in a folder of its."""
        if self.first is None:
            raise AssertionError(f"the machine is off: {self.output}")
        return ["nsenter", f"--target={self.first}", "--all", f"--wdns={folder}", "--"]

    def run(self, *words: str, folder: Path = Path("/"), check: bool = True) -> str:
        """Return what a command in it writes. Raises AssertionError with that where it fails."""
        done = subprocess.run([*self.prefix(folder), *words], env=CLEAN, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    async def answers(self, *words: str) -> None:
        """Wait until a command in it succeeds."""

        def succeeds() -> bool:
            if self._process.poll() is not None:
                raise AssertionError(f"the machine went off: {self.output}")
            if self.first is None:
                return False
            asked = [*self.prefix(Path("/")), "sh", "-c", 'test -e /run/entered && exec "$@"', "sh", *words]
            return subprocess.run(asked, env=CLEAN, capture_output=True, check=False).returncode == 0

        await wait_until(succeeds, f"{' '.join(words)} succeeds")


class Machine:
    """A tree, and a folder with the machine's writes, which stays from one start to the next."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        """Lay it out. Raises NotHereError where the tree cannot be made."""
        self._tree = tree.made()
        self._folder = folder
        for name in ("upper", "inner", "root"):
            (folder / name).mkdir(parents=True)
        self._name = f"stream-reaper-{os.getpid()}-{folder.name}"

    def put(self, file: Path, path: str) -> None:
        """Copy a file of ours into it, while it is off."""
        there = self._folder / "upper" / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, there)

    @contextmanager
    def on(
        self, *command: str, shared: Sequence[Path] = (), network: bool = True, cgroup: bool = False
    ) -> Iterator[Running]:
        """Have it on while the block runs, with ``command`` as its first process.

        ``network`` gives it our network. Otherwise it has its own, without other members. ``cgroup`` shows it only its
        own control groups, as systemd requires. ``{cgroup}`` in the command names a parent for control groups.
        """
        for file in ("/etc/resolv.conf", "/etc/hosts"):
            if network:
                self.put(Path(file), file)
        words = ["unshare", *NAMESPACES, *([] if network else ["--net"]), *(["--cgroup"] if cgroup else [])]
        words += ["--fork", "--kill-child=KILL", "sh", str(ENTER), str(self._tree), str(self._folder)]
        words += ["own" if cgroup else "all", *map(str, shared), "--"]
        words += [word.replace("{cgroup}", f"/{self._name}") for word in command]
        if cgroup:
            own = _unified() / self._name
            own.mkdir()
            words = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(own), *words]
        log = self._folder / "log"
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*ENDS_WITH_US, *words],
                    env=CLEAN,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            running = Running(process, log)
            try:
                yield running
            finally:
                running.end()
        finally:
            self._remove_cgroups()

    def remove(self) -> None:
        """Remove what it wrote."""
        shutil.rmtree(self._folder)

    def _remove_cgroups(self) -> None:
        for top in [*CGROUPS.glob(self._name), *CGROUPS.glob(f"*/{self._name}")]:
            for folder, _, _ in os.walk(top, topdown=False):
                Path(folder).rmdir()


def _unified() -> Path:
    """Return where control groups of version 2 are."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    raise NotHereError("systemd needs control groups of version 2, which are not mounted here")
