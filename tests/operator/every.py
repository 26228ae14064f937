"""Every command that there is, so that what holds for all of them is tested on all of them."""

from collections.abc import Iterator

import click

from reaper.cli.lazy import LazyCommand
from reaper.cli.main import main as reaper_main
from workers.cli import main as worker_main
from workers.protocol.keys import group_keys

__all__ = ["ALL", "ASKING", "KEYS", "LEAVES", "OTHERS", "child_of", "commands", "reaper_main", "typed", "worker_main"]

KEYS = group_keys("orders", "billing")
PAIR = ("--groups", KEYS.name)

ASKING: dict[str, tuple[str, ...]] = {
    "reaper dead-letters list": PAIR,
    "reaper dead-letters delete": (KEYS.name, "--all", "--yes"),
    "reaper dead-letters redrive": (KEYS.name, "--all"),
    "reaper dead-letters show": (KEYS.name, "1-0"),
    "reaper doctor": PAIR,
    "reaper drain": ("alice-1-abc",),
    "reaper explain": ("order-17", *PAIR),
    "reaper groups forget": (KEYS.name, "--yes"),
    "reaper groups create": (KEYS.name,),
    "reaper groups pause": (KEYS.name,),
    "reaper groups requeue": (KEYS.name, "--lost"),
    "reaper groups resume": (KEYS.name,),
    "reaper replicas": (),
    "reaper status": PAIR,
    "reaper watch add": (KEYS.name,),
    "reaper watch list": (),
    "reaper watch remove": (KEYS.name,),
}
"""Commands that ask a Redis of the user's, and answer; with what is typed after them."""
STARTING: dict[str, tuple[str, ...]] = {
    "reaper run": PAIR,
    "worker run": ("tests.web.shop:worker",),
    "reaper pipeline ingest": ("--lake", "lake", "--available-now"),
    "reaper drill": ("--limit", "20", "--quiet"),
    "reaper demo": (),
}
"""Commands that go on for long once Redis has let them in."""
OTHERS = {
    "reaper acl": "asks nobody",
    "reaper compare": "starts a Redis of its own",
    "reaper pipeline advise": "reads the lake",
    "reaper pipeline report": "reads the lake, and then only asks for jobs without an end",
    "reaper pipeline trim": "needs a lake first: tests/pipeline/test_trim.py",
}


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield a command, and all that are below it."""
    yield name, command
    if isinstance(command, click.Group):
        for child in command.commands:
            yield from commands(f"{name} {child}", child_of(command, child))


def child_of(group: click.Group, name: str) -> click.Command:
    """Return a command of a group, not what stands for it until it is used."""
    command = group.commands[name]
    return command.imported() if isinstance(command, LazyCommand) else command


ALL = [*commands("reaper", reaper_main), *commands("worker", worker_main)]
LEAVES = [(name, one) for name, one in ALL if not isinstance(one, click.Group)]


def typed(name: str) -> list[str]:
    """Return the words after the program's name."""
    return [*name.split()[1:], *(ASKING | STARTING)[name]]
