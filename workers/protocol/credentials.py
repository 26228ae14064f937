"""Passwords that lie in files are read again at each connect: they may be changed without a restart.

An address that a variable such as ``REAPER_REDIS_URL_FILE`` has brought is noted here with its file; every client that
is made for this address asks the file who we are, whenever it connects. The rest of the address counts from the start.
"""

import logging
from pathlib import Path

from redis.connection import parse_url
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from workers.protocol.address import parse_address
from workers.protocol.address_files import file_of

logger = logging.getLogger(__name__)

Credentials = tuple[()] | tuple[str] | tuple[str, str]
"""Nothing, a password, or a user's name and password: what follows ``AUTH``."""


def credentials_of(url: str) -> "FileCredentials | None":
    """Return who to ask for the credentials of ``url``; None where it was not read from a file."""
    file = file_of(url)
    return FileCredentials(file, url) if file else None


class FileCredentials(CredentialProvider):
    """Reads the credentials from a file with an address; where that cannot be read, those before stay in force."""

    def __init__(self, file: Path, url: str) -> None:
        self._file = file
        self._known = _credentials_in(url)
        self._told = ""

    def get_credentials(self) -> Credentials:  # type: ignore[override]
        """Return what the file says now. Called in whatever thread connects."""
        try:
            self._known = _credentials_in(self._file.read_text(encoding="utf-8-sig").strip())
            self._told = ""
        except (OSError, ValueError, RedisError) as error:  # about to be written, or gone
            why = type(error).__name__ if not isinstance(error, OSError) else str(error.strerror)
            if why != self._told:
                self._told = why
                logger.warning("%s cannot be read (%s): connecting with the password that was there", self._file, why)
        return self._known

    async def get_credentials_async(self) -> Credentials:  # type: ignore[override]
        """Return the same, in an event loop: the file is small."""
        return self.get_credentials()


def _credentials_in(url: str) -> Credentials:
    """Return the credentials of an address. Raises ValueError where there is none, or what redis-py raises."""
    found = parse_url(parse_address(url).node)
    name, password = found.get("username"), found.get("password")
    if not password:
        return ()
    return (name, password) if name else (password,)
