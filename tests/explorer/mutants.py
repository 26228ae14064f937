"""Scripts with one rule taken out. The explorer finds each of them, or it has no power."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Mutant:
    """Scripts in which one text is replaced by another."""

    scripts: tuple[str, ...]
    old: str
    new: str
    configuration: str = "stream, reaper"
    """Where it shows soonest."""

    def change(self, name: str, text: str) -> str:
        """Return the text of a script as it is played. without an owner: due at once"""
        if name not in self.scripts:
            return text
        if self.old not in text:
            raise ValueError(f"{name}.lua has no {self.old!r} to change")
        return text.replace(self.old, self.new)


MUTANTS: Mapping[str, Mutant] = MappingProxyType(
    {
        "no kept reply": Mutant(("settle",), "if who == caller and tonumber", "if false and tonumber"),
        "an ack that was sent again is carried out": Mutant(("ack",), "if who == ARGV[4] and", "if false and"),
        "an old call is carried out": Mutant(
            ("settle",), "tonumber(number) <= tonumber(last)", "tonumber(number) == tonumber(last)"
        ),
        "an ack is always done": Mutant(
            ("ack",),
            "results[i] = redis.call('XACK', source, group, entry_id)",
            "redis.call('XACK', source, group, entry_id) results[i] = 1",
            "stream, embedded",
        ),
        "a copy leaves its entry": Mutant(
            ("settle", "recover"),
            "acknowledged = acknowledged + redis.call('XACK', source, group, unpack(left, from, to))",
            "acknowledged = acknowledged + to - from + 1",
        ),
        "earlier deliveries do not count": Mutant(
            ("settle", "recover"), "math.min(job.deliveries, max_deliveries - 1) + times", "times"
        ),
        "a job is convicted that never arrived": Mutant(("recover",), "released.arrived ~= row[4]", "false"),
        "a job is convicted that was not released": Mutant(
            ("recover",), "return 'quarantine', 'not_released'", "return 'dead', 'max_deliveries'"
        ),
        "a quarantined job that is given back is ready": Mutant(
            ("settle", "recover"), "local waits = due or job.quarantined", "local waits = due"
        ),
        "embedded workers claim last deliveries": Mutant(
            ("recover",), "reason == 'visibility_timeout' and take", "fate ~= 'dead' and take", "stream, embedded"
        ),
        "no lease is asked for": Mutant(("recover", "move_due"), "holder ~= '' and found == holder", "holder ~= ''"),
        "no gate": Mutant(("move_due",), "in_doubt < gate_width()", "true", "stream, reaper, plain workers"),
    }
)
