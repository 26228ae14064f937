"""Checks the output files of a command before it starts, because the command can take half an hour."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from workers.protocol.errors import ConfigurationError
from workers.runtime.options import CommandT, errors_as_sentences


class OutputFile:
    """A file that can probably be written, and the option that names it."""

    def __init__(self, path: Path, option: str) -> None:
        """Raise ConfigurationError if there is no folder or permission, or if the file is a folder."""
        self.path, self.option = path, option
        try:
            _look_at(path)
        except OSError as error:
            raise self._unwritable(error) from error

    def beside(self, suffix: str) -> "OutputFile":
        """Return the file with another suffix. Raises ConfigurationError."""
        return OutputFile(self.path.with_suffix(suffix), self.option)

    def write(self, text: str) -> None:
        """Write the file. Raises ConfigurationError, for example if the disk is full."""
        try:
            self.path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"cannot write {self.option} {self.path}: {error.strerror}.")

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)


def output_file(*names: str, **more: Any) -> Callable[[CommandT], CommandT]:
    """Return an option for an output file. A file that cannot be written is rejected before the command starts."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(*names, type=path, callback=_checked, **more)


def _checked(_context: click.Context, option: click.Parameter, path: Path | None) -> OutputFile | None:
    if path is None:
        return None
    with errors_as_sentences():
        return OutputFile(path, option.opts[0])


def _look_at(path: Path) -> None:
    """Raise the OSError of a write, without opening the file, because the reader of a pipe would see its end."""
    folder = path.parent
    number = errno.EISDIR if path.is_dir() else 0
    if not folder.is_dir():
        number = errno.ENOTDIR if folder.exists() else errno.ENOENT
    elif not number and not os.access(path if path.exists() else folder, os.W_OK):
        number = errno.EACCES
    if number:
        raise OSError(number, os.strerror(number))
