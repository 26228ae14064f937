"""Imports commands at their first use, so that `reaper run` needs neither the drill nor Spark."""

from importlib import import_module
from typing import Any

import click

from workers.runtime.options import Program


class LazyGroup(Program):
    """A program that imports some commands only to run them, to print their help, or to complete them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._modules: dict[str, str] = {}

    def add_lazy(self, name: str, module: str, help_text: str) -> None:
        """Add the command ``name`` of ``module``."""
        self._modules[name] = module
        self.add_command(click.Command(name, help=help_text))  # stands for it in the list of commands

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the imported command. Shell completion calls this method, too."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and self.imported(name or "", command), rest

    def imported(self, name: str, command: click.Command) -> click.Command:
        """Return the command itself if ``command`` only stands for it."""
        if name not in self._modules:
            return command
        found: click.Command = getattr(import_module(self._modules[name]), name)
        return found
