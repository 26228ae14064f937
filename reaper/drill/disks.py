"""What a drill keeps while it is played fills a disk, or lies on one that takes nothing: told in a sentence."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.protocol.errors import ConfigurationError

_OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_FULL_BELOW = 8_192
"""Bytes: a file system may keep a page that it does not give."""
_NO_PLACE = "No usable temporary directory"
"""How Python begins where nothing can be written in any folder for temporary files: an error of a missing file."""


@contextmanager
def told_of_disks(files: Path | None) -> Iterator[None]:
    """Tell of what ``files``, or the folder for temporary files, does not take; all other errors stay as they are.

    Raises ConfigurationError.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_DISKS and _NO_PLACE not in str(error):
            raise
        where = "the folder for temporary files (TMPDIR names another)" if files is None else f"--files {files}"
        raise ConfigurationError(f"{where} cannot be written: {error.strerror}.") from error


def check_space(folder: Path) -> None:
    """Raise OSError where nothing more can be written in a folder."""
    if shutil.disk_usage(folder).free < _FULL_BELOW:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
