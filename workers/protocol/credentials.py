"""Passwords in files are read again at each connect, because they may change without a restart.

An address from a variable like ``REAPER_REDIS_URL_FILE`` is noted here with its file. Every client for this address
reads the login from the file, whenever it connects. The rest of the address counts from the start.
"""

import logging
from pathlib import Path

from redis.connection import parse_url
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from workers.protocol.address import parse_address
from workers.protocol.log_fields import fields

logger = logging.getLogger(__name__)

Credentials = tuple[()] | tuple[str] | tuple[str, str]
"""The arguments of ``AUTH``, which are none, a password, or a user name and a password."""
_files: dict[str, Path] = {}


def came_from(url: str, file: Path) -> None:
    """Note that ``url`` was read from ``file``."""
    _files[url] = file


def credentials_of(url: str) -> "FileCredentials | None":
    """Return the source of the credentials of ``url``, or None if it was not read from a file."""
    return FileCredentials(_files[url], url) if url in _files else None


class FileCredentials(CredentialProvider):
    """Reads the credentials from a file with an address. If the file cannot be read, the former ones stay in force."""

    def __init__(self, file: Path, url: str) -> None:
        self.file = file
        self._known = _credentials_in(url)
        self._logged = ""

    def get_credentials(self) -> Credentials:  # type: ignore[override]
        """Return the credentials in the file as it is now. Called in the connecting thread."""
        try:
            self._known, self._logged = _credentials_in(self.file.read_text(encoding="utf-8-sig").strip()), ""
        except (OSError, ValueError, RedisError) as error:  # it is being written, or was deleted
            why = type(error).__name__ if not isinstance(error, OSError) else str(error.strerror)
            if why != self._logged:
                self._logged = why
                logger.warning(
                    "cannot read the password file, using the last password: %s", fields(file=self.file, cause=why)
                )
        return self._known

    async def get_credentials_async(self) -> Credentials:  # type: ignore[override]
        """Return the same in an event loop, because the file is small."""
        return self.get_credentials()


def _credentials_in(url: str) -> Credentials:
    """Return the credentials of an address. Raises ValueError without credentials, or redis-py's errors."""
    found = parse_url(parse_address(url).node)
    name, password = found.get("username"), found.get("password")
    if not password:
        return ()
    return (name, password) if name else (password,)
