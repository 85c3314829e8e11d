"""A connected, non-blocking socket to a broker, with or without TLS, buffered both ways."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Iterator

from fleet.errors import TransportError
from fleet.transport.broker import BrokerSettings, TlsSettings
from fleet.transport.packets import end_of

_CHUNK_BYTES = 1 << 16
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux only


async def open_wire(broker: BrokerSettings) -> "Wire":
    """A socket to `broker`; the caller sets the deadline.

    Raises:
        TransportError: Nothing listens there, the name does not resolve, or TLS failed.
    """
    try:
        sock = await _connect(broker.host, broker.port)
    except socket.gaierror as error:
        raise TransportError(
            f"no broker at {broker.address}; the name does not resolve: check broker.host"
        ) from error
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else "no address"
        raise TransportError(
            f"no broker at {broker.address}; {reason}: start one there, or set"
            " broker.host and broker.port"
        ) from error
    try:
        return Wire(await _secure(sock, broker) if broker.tls.enabled else sock)
    except BaseException:
        sock.close()
        raise


class Wire:
    """What paho needs of a socket (`recv`, `send`, `close`, `fileno`, `setblocking`), by packets.

    `fill` reads all that has arrived in one call, and `flush` writes all that was sent since, so
    that many small packets cost one system call. TLS leaves nothing behind that the event loop
    cannot see. paho gets one whole packet at a time, and its own never mix with others.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._arrived = bytearray()
        self._position = 0  # of the first byte that was not taken
        self._offered = b""
        self._unsent = bytearray()
        self.has_ended = False  # the broker has closed the socket
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def unsent(self) -> int:
        """Bytes that wait for `flush`, or for room in the kernel."""
        return len(self._unsent)

    def fill(self) -> None:
        """Moves what has arrived into the buffer."""
        try:
            while True:
                data = self._sock.recv(_CHUNK_BYTES)
                self._arrived += data
                self.has_ended = not data
                if not isinstance(self._sock, ssl.SSLSocket) or not self._sock.pending():
                    break
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self.has_ended = True
        if _QUICKACK is not None and not self.has_ended:
            # The kernel clears it again by itself. Without it a broker with Nagle's algorithm
            # on waits 40 ms for our delayed acknowledgement.
            self._sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def packet(self) -> bytes | None:
        """Takes the next packet that has arrived whole.

        Raises:
            ProtocolError: What arrived is no packet.
        """
        end = end_of(self._arrived, self._position)
        if end is None:
            del self._arrived[: self._position]
            self._position = 0
            return None
        packet = bytes(memoryview(self._arrived)[self._position : end])
        self._position = end
        return packet

    def offer(self, packet: bytes) -> None:
        """Lets `recv` give a packet."""
        self._offered = packet

    def recv(self, size: int) -> bytes:
        """At most `size` bytes of what is offered; b"" when the broker has closed the socket."""
        data, self._offered = self._offered[:size], self._offered[size:]
        if not data and not self.has_ended:
            raise BlockingIOError
        return data

    def send(self, data: bytes) -> int:
        """Takes all of `data`, to be sent by `flush`."""
        self._unsent += data
        return len(data)

    def flush(self) -> None:
        """Gives the kernel as much as it takes.

        Raises:
            OSError: The connection is lost.
        """
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]

    def setblocking(self, flag: bool) -> None:
        """The socket never blocks."""

    def fileno(self) -> int:
        """For the event loop."""
        return self._sock.fileno()

    def close(self) -> None:
        """Sends what it can and says that no more will come; `finish` frees the socket."""
        with contextlib.suppress(OSError):
            self.flush()
            self._sock.shutdown(socket.SHUT_WR)

    async def finish(self, deadline_s: float) -> None:
        """Frees the socket, once the broker has read everything, or after `deadline_s`.

        Closing a socket with unread bytes resets the connection: the broker might then miss
        the goodbye and publish the will.
        """
        try:
            if not isinstance(self._sock, ssl.SSLSocket):
                async with asyncio.timeout(deadline_s):
                    while await asyncio.get_running_loop().sock_recv(self._sock, _CHUNK_BYTES):
                        pass
        except (OSError, TimeoutError):
            pass
        finally:
            self._sock.close()

    def abort(self) -> None:
        """Frees the socket at once."""
        self._sock.close()


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure = OSError()
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _secure(sock: socket.socket, broker: BrokerSettings) -> ssl.SSLSocket:
    secure = _context(broker.tls).wrap_socket(
        sock, server_hostname=broker.host, do_handshake_on_connect=False
    )
    try:
        with _tls_errors(broker):
            await _shake_hands(secure)
    except BaseException:
        secure.close()
        raise
    return secure


async def _shake_hands(secure: ssl.SSLSocket) -> None:
    while True:
        try:
            secure.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(secure, for_writing=False)
        except ssl.SSLWantWriteError:
            await _ready(secure, for_writing=True)
        else:
            return


@contextlib.contextmanager
def _tls_errors(broker: BrokerSettings) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise TransportError(
            f"the certificate of the broker at {broker.address} is not trusted:"
            f" {error.verify_message}; check broker.host and broker.tls.ca"
        ) from error
    except OSError as error:
        raise TransportError(
            f"TLS with the broker at {broker.address} failed: {error.strerror or error}; check its"
            " port, and broker.tls.cert if it asks for a client certificate"
        ) from error


def _context(tls: TlsSettings) -> ssl.SSLContext:
    for file in (tls.ca, tls.cert, tls.key):
        if file is not None and not file.is_file():
            raise TransportError(f"broker.tls: there is no file {file}")
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise TransportError(
            f"broker.tls: the certificates or the key are not usable: {error}"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


async def _ready(sock: socket.socket, *, for_writing: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add = loop.add_writer if for_writing else loop.add_reader
    remove = loop.remove_writer if for_writing else loop.remove_reader

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(sock.fileno(), wake)
    try:
        await ready
    finally:
        remove(sock.fileno())
