"""Forward the head's servers to a second address, for clients on another network than the nodes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable
from contextlib import AsyncExitStack, closing, suppress

_BYTES = 2**16


class Relay:
    """Forwards connections from ports of `outside` to the same ports of `inside`, in a thread.

    Raises OSError if a port of `outside` is taken, or if `outside` is not an address of this host.
    """

    def __init__(self, outside: str, inside: str, ports: Iterable[int]) -> None:
        self._inside = inside
        self._listening = [socket.create_server((outside, port)) for port in ports]
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the relay, and close its connections."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with AsyncExitStack() as servers:
            for each in self._listening:
                await servers.enter_async_context(
                    await asyncio.start_server(self._carry, sock=each)
                )
            await self._end.wait()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        with closing(writer), suppress(OSError):  # the server is not up yet, or ends suddenly
            to_reader, to_writer = await asyncio.open_connection(self._inside, port)
            with closing(to_writer):
                await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()  # the other direction may continue
