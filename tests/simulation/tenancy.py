"""Follows the lease of the group, and judges promise I3: each write is by its holder at that instant.

A value of the lease is of one term, and so of one process. A replica's script names it among its arguments.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.simulation.places import KEYS
from tests.simulation.reached import Moment, script_names
from tests.simulation.server.replies import Reply
from tests.simulation.story import EMBEDDED
from workers.protocol.events import LifecycleEvent
from workers.protocol.messages import text

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE = KEYS.lease.encode()
GROUP_KEYS = frozenset(
    key.encode()
    for key in (
        KEYS.stream,
        KEYS.retry,
        KEYS.dead,
        KEYS.schedule,
        KEYS.stream_schedule,
        KEYS.settings,
        KEYS.quarantine,
    )
)
"""Where replicas write by their lease."""
HARMLESS = frozenset({b"", b"0-0"})
"""Names that nothing has. Scripts write them first, because a full server lets a script go on that has written."""
OFFER, FREED = b"offer:", b"freed"
TAKEN, KEPT, OFFERED = "lease taken", "lease kept", "lease offered"
"""Moments: of the first one, it was said how the term before has ended (an offer, `FREED`, or the value that
expired)."""


class Tenancy:
    """The lease of a world's group."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._takers: dict[bytes, str] = {}
        """By value of the lease: the process that took it."""
        self._before: tuple[bytes, int] = b"", 0
        """The lease before the command that runs, and its expiry by the server's clock in ms."""
        self._ended = b""
        self._latest = b""
        """The value by which the lease was taken last."""
        self._used: set[bytes] = set()
        """Values by which replicas have written."""
        self._has_acted = False
        """The command that runs has written in the group."""
        self._asking: set[str] = set()
        """The processes that have asked for the lease while they did not serve the group."""
        self.holder = ""
        """The process that took the lease last."""

    @property
    def _script(self) -> str:
        """The name of the script that the command runs, or has run."""
        return script_names().get(self._world.server.script[0], "")

    def asks(self, process: str) -> None:
        """Note that a process asks for the lease that does not serve the group now."""
        self._asking.add(process)

    def wrote(self, words: Sequence[bytes], reply: Reply) -> None:
        """Note one write."""
        if len(words) < 2:
            return
        command, key = words[0].upper(), words[1]
        if key == LEASE:
            self._lease_written(command, words, reply)
        elif key in GROUP_KEYS and command != b"HINCRBY" and not HARMLESS.issuperset(words[-1:]):
            self._has_acted = True  # HINCRBY counts those that are fenced

    def told(self, event: LifecycleEvent, when: str) -> None:
        """Look whether a worker recovers by itself while a replica holds the lease."""
        lease = self._world.server.keys.find(LEASE)
        if event.data.get("mode") == EMBEDDED and self._script == "recover" and lease:
            self._add(f"a worker recovered by itself, and the lease is {lease!r}", when)

    def step_over(self, caller: str, when: str) -> None:
        """Look whether it was the holder that has written."""
        if self._has_acted and caller.startswith("reaper"):
            lease, (_, arguments) = self._world.server.keys.find(LEASE), self._world.server.script
            named = next((word for word in arguments if word in self._takers), b"")
            if named != lease or self._takers.get(named) != caller:
                whose = f"{text(named)}, of {self._takers[named]}," if named else "no lease"
                self._add(f"a replica wrote by {whose} while the lease is {lease!r}", when)
            if self._script != "lease_take":
                self._used.add(named)
        self._has_acted = False
        self._look()

    def begin_anew(self) -> None:
        """Look at the lease, because the server has lost its last writes, or is another one."""
        self._has_acted, self._ended = False, b""
        self._look()

    def _look(self) -> None:
        keys = self._world.server.keys
        value = keys.values.get(LEASE)
        self._before = value if isinstance(value, bytes) else b"", keys.expires.get(LEASE, 0)

    def _add(self, sentence: str, when: str) -> None:
        self._world.findings.add(f"I3: {sentence}", when)

    def _lease_written(self, command: bytes, words: Sequence[bytes], reply: Reply) -> None:
        witness, world = self._world.witness, self._world
        value, until_ms = self._before
        before = value if until_ms > world.server.now_ms else b""
        is_own = self._takers.get(before) == witness.caller
        if command == b"SET":
            self._set(words[2], before, is_own=is_own)
        elif command == b"DEL" and reply == 1:
            self._ended = FREED

    def _set(self, value: bytes, before: bytes, *, is_own: bool) -> None:
        world, caller, when = self._world, self._world.witness.caller, self._world.witness.when
        if LEASE not in world.server.keys.expires:
            self._add(f"the lease {text(value)} never expires", when)
        if value.startswith(OFFER):
            if not is_own:
                self._add(f"{caller} offers a lease that is not its own: {text(before)}", when)
            self._ended = value
            world.note(OFFERED, Moment(caller, value))
            return
        if value == before and is_own:
            if caller in self._asking:  # it begins anew, after a lost reply or with other settings
                self._asking.discard(caller)
                world.drops.holder_begins()
            world.note(KEPT, Moment(caller))
            return
        if self._takers.setdefault(value, caller) != caller:
            self._add(f"{caller} takes the lease in the name of {self._takers[value]}", when)
        if value in self._used and value != self._latest:
            self._add(f"{caller} takes the lease by a value of an earlier term", when)
        if before not in (b"", OFFER + value.rpartition(b".")[0]):
            self._add(f"{caller} takes the lease while it is {text(before)}", when)
        self.holder, said, self._ended = caller, self._ended or self._before[0], b""
        self._latest = value
        self._asking.discard(caller)
        world.drops.holder_begins()
        world.note(TAKEN, Moment(caller, said))
