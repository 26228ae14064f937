"""Files that a command writes at its end: looked at before it begins, for what it does may take half an hour."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from workers.protocol.errors import ConfigurationError
from workers.runtime.options import CommandT, errors_as_sentences


class OutputFile:
    """A file that can be written, as far as can be known beforehand, and the option that named it."""

    def __init__(self, path: Path, option: str) -> None:
        """Raise ConfigurationError where it cannot be written: no folder, no right, or a folder of that name."""
        self.path, self.option = path, option
        try:
            _look_at(path)
        except OSError as error:
            raise self._unwritable(error) from error

    def beside(self, suffix: str) -> "OutputFile":
        """Return its company: the file of the same name that ends otherwise. Raises ConfigurationError."""
        return OutputFile(self.path.with_suffix(suffix), self.option)

    def write(self, text: str) -> None:
        """Write the file. Raises ConfigurationError: a disk may be full by now."""
        try:
            self.path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"{self.option} {self.path} cannot be written: {error.strerror}.")

    def __str__(self) -> str:
        """Return where it is."""
        return str(self.path)


def output_file(*names: str, **more: Any) -> Callable[[CommandT], CommandT]:
    """Return the option for a file to write; what cannot be written is refused before the command begins."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(*names, type=path, callback=_checked, **more)


def _checked(_context: click.Context, option: click.Parameter, path: Path | None) -> OutputFile | None:
    if path is None:
        return None
    with errors_as_sentences():
        return OutputFile(path, option.opts[0])


def _look_at(path: Path) -> None:
    """Raise OSError as writing it would. It is not opened: a pipe's reader would take that for the end."""
    is_there = path.exists()
    if path.is_dir():
        raise _because(errno.EISDIR)
    if not path.parent.is_dir():
        raise _because(errno.ENOTDIR if path.parent.exists() else errno.ENOENT)
    if not os.access(path if is_there else path.parent, os.W_OK):
        raise _because(errno.EACCES)


def _because(number: int) -> OSError:
    return OSError(number, os.strerror(number))
