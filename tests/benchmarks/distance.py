"""A Redis that is far away: a forwarder that holds every byte for half of a round trip, each way, in order.

Run as ``python -m tests.benchmarks.distance PORT ROUND_TRIP_MS``; it prints the port to connect to.
"""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter

CHUNK = 1 << 16


async def _carry(reader: StreamReader, writer: StreamWriter, held_s: float) -> None:
    loop = asyncio.get_running_loop()
    on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            arrives_at, data = await on_its_way.get()
            await asyncio.sleep(arrives_at - loop.time())
            if not data:
                writer.close()
                return
            writer.write(data)

    delivering = asyncio.create_task(deliver())
    data = b"."
    while data:
        try:
            data = await reader.read(CHUNK)
        except OSError:
            data = b""
        on_its_way.put_nowait((loop.time() + held_s, data))
    await delivering


async def main(port: int, round_trip_ms: float) -> None:
    """Forward connections to ``port`` of this machine until the process is ended."""
    held_s = round_trip_ms / 2000

    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_carry(reader, to_server, held_s), _carry(from_server, writer, held_s))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
