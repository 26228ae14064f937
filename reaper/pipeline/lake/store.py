"""The folder or object store of a lake, and functions that write files durably.

It runs in Spark's Python, and may import only the standard library, pyarrow and pyspark.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Variables with the address of an object store. The first one that is set counts, as in deltalake."""


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
    """Write ``text`` to ``path`` in one step, safe against a power failure."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    flush(draft)
    draft.replace(path)


def spark_path(path: str | Path) -> str:
    """Return a path as an address in which Spark does not decode characters (``%20`` is no blank)."""
    return f"file://{path}"
