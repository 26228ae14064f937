"""Where a lake is stored: a folder or an object store, and how files get there for good.

It runs in Spark's Python, where only the standard library, pyarrow and pyspark may be imported.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Variables with the address of an object store; the first that is set counts, for deltalake as well."""


def is_address(where: str) -> bool:
    """Tell whether ``where`` is an address rather than a folder."""
    return "://" in where


def filesystem(address: str) -> FileSystem:
    """Return the file system below ``address``. Its settings are the variables that deltalake reads, too."""
    if not is_address(address):
        return SubTreeFileSystem(address, LocalFileSystem())
    bucket = urlsplit(address)
    endpoint = urlsplit(next((os.environ[name] for name in ENDPOINTS if name in os.environ), ""))
    store = S3FileSystem(
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or None,
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    )
    return SubTreeFileSystem(bucket.netloc + bucket.path, store)


def flush(path: str | Path) -> None:
    """Put a file or a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Make ``path`` hold ``text``, in one step, also where power fails."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    flush(draft)
    draft.replace(path)


def spark_path(path: str | Path) -> str:
    """Return a path as Spark reads it: an address whose characters stand for themselves (``%20`` is no blank)."""
    return f"file://{path}"
