"""Which addresses of Redis were read from files: these may hold another password later, see `credentials`."""

from pathlib import Path
from threading import Lock

_files: dict[str, Path] = {}
_lock = Lock()


def came_from(url: str, file: Path) -> None:
    """Note that ``url`` was read from ``file``."""
    with _lock:
        _files[url] = file


def file_of(url: str) -> Path | None:
    """Return the file that ``url`` was read from, in this process; None where it was not."""
    with _lock:
        return _files.get(url)
