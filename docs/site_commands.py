"""A hook of MkDocs: the page of the commands gets the help of each one."""

from collections.abc import Iterator
from typing import Any

import click

from reaper.cli.lazy import LazyCommand
from reaper.cli.main import main as reaper
from workers.cli import main as worker

PAGE = "commands.md"
WIDTH = 90
"""Characters of a line of help."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append the help of all commands to their page."""
    if page.file.src_uri != PAGE:
        return markdown
    parts = [*sections(click.Context(reaper, info_name="reaper", max_content_width=WIDTH))]
    parts += sections(click.Context(worker, info_name="worker", max_content_width=WIDTH))
    return "\n".join([markdown, *parts])


def sections(context: click.Context) -> Iterator[str]:
    """Yield a section for the command of a context, and for each command below it."""
    command = context.command
    yield f"## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below:
                whole = below.imported() if isinstance(below, LazyCommand) else below
                yield from sections(click.Context(whole, parent=context, info_name=name))
