"""Copies of a table's files on this machine, for a Spark that has no jar for object stores.

Files of a lake never change, so what was fetched once is good for ever. What the table counts no more is removed some
time later, for those who are reading it.
"""

import hashlib
import os
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time

from reaper.pipeline.lake.delta import FILES_KEPT_HOURS, filesystem

AT_ONCE = 8
"""Files that are fetched side by side."""


def mirrored(address: str, files: Iterable[str]) -> Path:
    """Return a folder that holds ``files`` of the table at ``address``, after fetching those that it lacks."""
    folder = _cache() / hashlib.sha256(address.encode()).hexdigest()[:32]
    wanted = set(files)
    missing = sorted(name for name in wanted if not (folder / name).exists())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda name: _fetch(address, name, folder), missing))
    oldest = time() - FILES_KEPT_HOURS * 3600
    for file in folder.glob("*/*.parquet"):
        if str(file.relative_to(folder)) not in wanted and file.stat().st_mtime < oldest:
            file.unlink(missing_ok=True)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream-reaper" / "lake"


def _fetch(address: str, name: str, folder: Path) -> None:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{uuid.uuid4().hex}")
    with filesystem(address).open_input_stream(name) as source:
        draft.write_bytes(source.read())
    draft.replace(target)
