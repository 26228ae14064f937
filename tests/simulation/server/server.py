"""The model of a server, which runs commands as Redis does, one at a time."""

import hashlib
from collections.abc import Callable

from tests.simulation.server import (  # each fills the table of commands
    control,
    group_commands,
    hashes,
    keys,
    read_commands,
    sorted_sets,
    stream_commands,
    stream_info,
)
from tests.simulation.server.blocking import Queue, Waiter
from tests.simulation.server.channels import Channels
from tests.simulation.server.commands import COMMANDS, Command, Kind
from tests.simulation.server.core import Core, ServerClock
from tests.simulation.server.history import History
from tests.simulation.server.lookup import find, knows
from tests.simulation.server.replies import NO_REPLY, OK, Reply, ReplyError, Status
from tests.simulation.server.scripts import CallRejectedError, engine
from tests.simulation.server.sessions import Session
from tests.simulation.server.versions import capabilities_of
from tests.simulation.server.words import integer

__all__ = ["ModelServer"]
_ = (control, group_commands, hashes, keys, read_commands, sorted_sets, stream_commands, stream_info)

OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."
READ_ONLY = "READONLY You can't write against a read only replica."
NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."
LOADING = "LOADING Redis is loading the dataset in memory"
NOT_WHILE_LOADING = frozenset({"ping", "eval", "evalsha"})
"""Commands without keys that a server rejects while it reads its data."""
NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."
DEMOTED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
QUEUED = Status(b"QUEUED")


class ModelServer(Core):
    """A server. ``version`` is one of `versions.KNOWN`."""

    def __init__(self, *, version: str = "7.0", clock: ServerClock) -> None:
        super().__init__(capabilities_of(version))
        self.clock = clock
        self.sessions: dict[int, Session] = {}
        self.scripts: set[bytes] = set()
        self.denied = set[str]()
        """Commands that no user may run, in lower case, with a subcommand after ``|``."""
        self.lacks_replicas = False
        """``min-replicas-to-write`` is not met, so the server rejects writes."""
        self.max_clients = 10_000
        self.is_full = self.is_replica = self.is_loading = False
        self.channels = Channels()
        self.publish = self.channels.publish
        self.wrote: Callable[[list[bytes], Reply], None] | None = None
        """Called with each write and its reply…"""
        self.step_over: Callable[[], None] | None = None
        """… and at the end of each command, script or transaction."""
        self.executed: Callable[[list[bytes], Reply], None] | None = None
        """Called with each command of a client, and its reply."""
        self.not_allowed: Callable[[list[bytes]], None] | None = None
        """Called with the write of a script that its user had no permission for."""
        self._engine = engine(is_7=self.is_7)
        self._history = History(self.capabilities)
        self._queue = Queue(self, self._note)
        self._to_resume: list[Session] = []
        self._next_id = 1
        self._is_serving = False
        self._script_wrote = False
        self._run_id = 0
        self.script: tuple[bytes, list[bytes]] = b"", []
        """Digest and arguments of the script that this command runs, or has run."""

    # ---- connections
    def connect(self, send: Callable[[bytes], None], on_close: Callable[[], None] = lambda: None) -> Session:
        """Accept a connection. ``send`` gets replies at any time. The server calls ``on_close`` to close it."""
        session = Session(self, self._next_id, send, on_close)
        self._next_id += 1
        if len(self.sessions) >= self.max_clients:
            session.push(ReplyError("ERR max number of clients reached"))
            session.hang_up()
            return session
        self.sessions[session.id] = session
        return session

    def forget(self, session: Session) -> None:
        """Note that a connection is closed."""
        self.sessions.pop(session.id, None)
        if session.waiter is not None:
            self._queue.drop(session.waiter)
            session.waiter = None
        self.channels.forget(session)

    # ---- commands
    def execute(self, session: Session, words: list[bytes]) -> Reply:
        """Run one command, and return its reply."""
        self.set_time(self.clock.now_us())
        self.session, self.script = session, (b"", [])
        try:
            found = find(self, words)
            self._check(session, found)
            if session.in_transaction and found.name not in ("exec", "discard", "multi"):
                session.queued.append(words)
                return QUEUED
            if session.in_transaction:
                return self._in_transaction(session, found)
            reply = self._run(found, words)
        except ReplyError as error:
            session.spoiled = True
            return error
        finally:
            self.session = None
            if self.step_over is not None:
                self.step_over()
        if self.waiting is not None:
            self._wait(session)
        return reply

    def _run(self, found: Command, words: list[bytes]) -> Reply:
        reply = found.handler(self, words)
        if found.writes and reply is not NO_REPLY:
            self._note(words, reply)
        return reply

    def _note(self, words: list[bytes], reply: Reply) -> None:
        self._history.note(self.now_us, words)
        if self.wrote is not None:
            self.wrote(words, reply)

    def _in_transaction(self, session: Session, found: Command) -> Reply:
        if found.name == "multi":
            raise ReplyError("ERR MULTI calls can not be nested")
        spoiled = session.spoiled
        queued = session.queued
        if found.name == "discard":
            session.end_transaction()
            return OK
        if spoiled:
            session.end_transaction()
            raise ReplyError("EXECABORT Transaction discarded because of previous errors.")
        replies: list[Reply] = []
        for words in queued:
            try:
                replies.append(self._run(find(self, words), words))
            except ReplyError as error:
                replies.append(error)
        session.end_transaction()
        return replies

    def after_command(self) -> None:
        """Answer sessions that wait for new entries, and continue those which that unblocked."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self.ready or self._to_resume:
                if self.ready:
                    self._queue.serve()
                resumed, self._to_resume = self._to_resume, []
                for session in resumed:
                    session.go_on()
            self._history.tidy(self.keys)
        finally:
            self._is_serving = False

    def resume_later(self, session: Session) -> None:
        """Continue a session once the running command ends."""
        self._to_resume.append(session)

    def _check(self, session: Session, found: Command) -> None:
        if found.name in self.denied:
            raise self._denied(found.name)
        rejected = self._rejected_now(session, found)
        if rejected is None:
            return
        if found.name == "exec" and session.in_transaction:
            session.end_transaction()
            raise ReplyError("EXECABORT Transaction discarded because of: " + rejected)
        raise ReplyError(rejected)

    def _kind(self, found: Command) -> Kind:
        """Return the categories of a command. 6.2 does not distinguish subcommands."""
        return "grow" if not self.is_7 and found.name.startswith("xgroup|") else found.kind

    def _rejected_now(self, session: Session, found: Command) -> str | None:
        """Return the reason for which the server rejects a command in its state."""
        if not (self.is_full or self.is_replica or self.is_loading or self.lacks_replicas):
            return None
        kinds = {self._kind(found)}
        if found.name == "exec":
            kinds |= {self._kind(find(self, words)) for words in session.queued}
        has_no_room = self.is_full and not self.is_replica  # a replica keeps the data of its primary
        if has_no_room and ("grow" in kinds or (session.in_transaction and found.name not in ("exec", "discard"))):
            return OUT_OF_MEMORY  # a transaction takes memory while it waits
        if self.is_replica and kinds & {"grow", "write"}:
            return READ_ONLY
        if self.lacks_replicas and kinds & {"grow", "write"}:
            return NO_REPLICAS
        if self.is_loading and (kinds != {"control"} or found.name in NOT_WHILE_LOADING):
            return LOADING
        return None

    def _denied(self, name: str) -> ReplyError:
        if self.capabilities.is_7_2:
            return ReplyError(f"NOPERM User default has no permissions to run the '{name}' command")
        more = "" if self.is_7 else " or its subcommand"
        return ReplyError(f"NOPERM this user has no permissions to run the '{name}' command{more}")

    def _wait(self, session: Session) -> None:
        read, self.waiting = self.waiting, None
        assert read is not None
        waiter = Waiter(session, read, None)
        if read.block_ms:
            waiter.timer = self.clock.call_later(read.block_ms / 1000, lambda: self._time_out(waiter))
        session.waiter = waiter
        self._queue.put(waiter)

    def _time_out(self, waiter: Waiter) -> None:
        self._queue.time_out(waiter)
        self.after_command()

    # ---- scripts
    def load_script(self, source: bytes) -> bytes:
        """Store a script, and return its digest."""
        digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self._engine.compile(digest, source)
        self.scripts.add(digest)
        return digest

    def evaluate(self, digest: bytes, words: list[bytes]) -> Reply:
        """Run a stored script. ``words`` are those of EVAL or EVALSHA."""
        if digest not in self.scripts:
            raise ReplyError(NO_SCRIPT)
        count = integer(words[2])
        if count > len(words) - 3:
            raise ReplyError("ERR Number of keys can't be greater than number of args")
        if count < 0:
            raise ReplyError("ERR Number of keys can't be negative")
        self.in_script, self._script_wrote, self.script = True, False, (digest, words[3 + count :])
        try:
            return self._engine.run(digest, words[3 : 3 + count], words[3 + count :], self._call_of_script, self._may)
        finally:
            self.in_script = False

    def _call_of_script(self, words: list[bytes]) -> Reply:
        if not words:
            raise CallRejectedError(
                "ERR Please specify at least one argument for this redis lib call",
                "Please specify at least one argument for redis.call()",
            )
        try:
            found = find(self, words)
        except ReplyError as error:
            raise self._rejected_words(words, error) from None
        if not found.in_scripts:
            raise CallRejectedError(
                "ERR This Redis command is not allowed from script", "This Redis command is not allowed from scripts"
            )
        if found.name in self.denied:
            if self.not_allowed is not None:
                self.not_allowed(words)
            raise self._denied_in_script(found.name)
        if found.writes:
            if self.is_replica:
                raise CallRejectedError(READ_ONLY, f"-{READ_ONLY}\r\n")
            if self.lacks_replicas:
                raise CallRejectedError(NO_REPLICAS, f"-{NO_REPLICAS}\r\n")
            if self.is_full and self._kind(found) == "grow" and not self._script_wrote:
                raise CallRejectedError(OUT_OF_MEMORY, f"-{OUT_OF_MEMORY}\r\n")
            self._script_wrote = True
        return self._run(found, words)

    def _may(self, words: list[bytes]) -> bool | None:
        """Answer redis.acl_check_cmd (7.0), or None if the server does not know the command."""
        found = COMMANDS.get(words[0].upper())
        if found is None or not knows(self, found):
            return None
        return found.name not in self.denied

    def _rejected_words(self, words: list[bytes], error: ReplyError) -> ReplyError:
        found = COMMANDS.get(words[0].upper())
        if (found is not None and knows(self, found)) or b"wrong number of arguments" in error.text:
            said = "Wrong number of args calling Redis command from script"
            return CallRejectedError(f"ERR {said}", "Wrong number of args calling Redis command From Lua script")
        said = "Unknown Redis command called from script"
        return CallRejectedError(f"ERR {said}", "Unknown Redis command called from Lua script")

    def _denied_in_script(self, name: str) -> ReplyError:
        if self.capabilities.is_7_2:
            return ReplyError(
                f"NOPERM ACL failure in script: User default has no permissions to run the '{name}' command"
            )
        said = "The user executing the script can't run this command or subcommand"
        return CallRejectedError(f"ERR {said}", said)

    # ---- INFO
    def info(self) -> dict[str, dict[str, object]]:
        """Return the reply of INFO, by section."""
        return {
            "server": {
                "redis_version": self.capabilities.full,
                "redis_mode": "standalone",
                "run_id": f"{self._run_id:040x}",
                "process_id": 1,
                "uptime_in_seconds": self.clock.uptime_s(),
            },
            "clients": {"connected_clients": len(self.sessions), "blocked_clients": 0},
            "memory": {"used_memory": 1_000_000, "maxmemory": 0, "maxmemory_policy": "noeviction"},
            "persistence": {"loading": int(self.is_loading), "aof_enabled": 1},
            "stats": {"evicted_keys": 0, "expired_keys": 0},
            "replication": {"role": "slave" if self.is_replica else "master", "connected_slaves": 0},
        }

    # ---- faults
    def fill(self, *, full: bool) -> None:
        """Set whether memory is full. Then the server rejects commands that may need memory."""
        self.is_full = full

    def script_flush(self) -> None:
        """Delete all scripts."""
        self.scripts.clear()

    def flush_all(self) -> None:
        """Delete all data, as FLUSHALL does."""
        self.set_time(self.clock.now_us())
        self._run(COMMANDS[b"FLUSHALL"], [b"FLUSHALL"])
        self.after_command()

    def loading(self, *, is_loading: bool) -> None:
        """Set whether the server still reads its data from disk."""
        self.is_loading = is_loading

    def readonly(self, *, is_replica: bool) -> None:
        """Become a replica, or a primary. A new replica closes the connections of blocked clients."""
        if is_replica and not self.is_replica:
            for session in [session for session in self.sessions.values() if session.waiter is not None]:
                session.push(ReplyError(DEMOTED))
                session.hang_up()
        self.is_replica = is_replica

    def end_connections(self) -> None:
        """Close all connections, as at the end of the process."""
        for session in list(self.sessions.values()):
            session.hang_up()

    def restart(self, lose_last_ms: int = 0) -> None:
        """Restart without connections and scripts, and without the last writes."""
        self.end_connections()
        self.script_flush()
        self._run_id += 1
        if lose_last_ms:
            self.keys = self._history.data_before(self.clock.now_us(), lose_last_ms * 1000)
            self._history.restart(self.keys)

    def copy(self, *, lag_ms: int = 0, clock: ServerClock | None = None) -> "ModelServer":
        """Return a replica that has the writes up to ``lag_ms`` ago. `readonly` makes it the primary."""
        replica = ModelServer(version=self.capabilities.name, clock=clock or self.clock)
        replica.denied, replica.lacks_replicas = set(self.denied), self.lacks_replicas
        replica.is_replica = True
        replica.keys = self._history.data_before(self.clock.now_us(), lag_ms * 1000)
        replica._history.restart(replica.keys)
        replica._run_id = self._run_id + 1_000_000
        return replica
