"""A few HTTP requests in a thread, because the server runs in this process."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import anyio.to_thread

from tests.support.patience import PATIENCE_S, scaled


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        """The body, as JSON."""
        return json.loads(self.body)


async def request(
    port: int, path: str, *, method: str = "GET", body: str | None = None, host: str = "127.0.0.1", **headers: str
) -> Reply:
    """Send one request; underscores in the names of headers are dashes."""

    def send() -> Reply:
        connection = HTTPConnection(host, port, timeout=scaled(PATIENCE_S))
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    return await anyio.to_thread.run_sync(send)
