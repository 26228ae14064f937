"""A command that is imported at its first use, so that `reaper run` needs neither the drill nor Spark."""

from importlib import import_module
from typing import Any

import click


class LazyCommand(click.Command):
    """Stands for the command ``name`` of a module in the list of commands."""

    def __init__(self, name: str, module: str, help_text: str) -> None:
        super().__init__(name, help=help_text)
        self._module = module

    def imported(self) -> click.Command:
        """Return the command itself."""
        found: click.Command = getattr(import_module(self._module), self.name or "")
        return found

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Return a context of the command itself, to run it, print its help, or complete it."""
        return self.imported().make_context(*args, **more)
