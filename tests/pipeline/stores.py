"""An object store of the tests' own: moto, on the loopback."""

from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection

import anyio.to_thread

from tests.support.ports import free_port
from tests.support.processes import Processes


async def start_store(processes: Processes) -> dict[str, str]:
    """Start a store with one empty bucket, ``bucket``. Returns the environment of programs that use it."""
    port = free_port()
    store = processes.python("-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), name="store")
    await store.prints("Running on")
    await anyio.to_thread.run_sync(_make_bucket, port)
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }


def _make_bucket(port: int) -> None:
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("PUT", "/bucket")
        assert connection.getresponse().status == HTTPStatus.OK
