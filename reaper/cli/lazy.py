"""Commands that are imported only when somebody uses them, so that `reaper run` needs neither drill nor Spark."""

from importlib import import_module
from typing import Any

import click

from workers.runtime.options import Program


class LazyGroup(Program):
    """A program of which some commands are imported at their use: to be run, to show their help, to be completed."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._modules: dict[str, str] = {}

    def add_lazy(self, name: str, module: str, help_text: str) -> None:
        """Add the command that ``module`` holds under ``name``."""
        self._modules[name] = module
        self.add_command(click.Command(name, help=help_text))  # for the list of all; nobody runs it

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; the shell's completion comes this way too."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and self.imported(name or "", command), rest

    def imported(self, name: str, command: click.Command) -> click.Command:
        """Return the command itself, where ``command`` only stands for it."""
        if name not in self._modules:
            return command
        found: click.Command = getattr(import_module(self._modules[name]), name)
        return found
