"""The proxy before a store passes, cuts, refuses and holds."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from streamhouse.chaos.fleet.proxy import Proxy, ProxyMode
from streamhouse.testing.services.ports import free_ports


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy before a server that accepts and says hello."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Proxy(server.getsockname()[1])
        peers: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peers.append(server.accept()[0])
                    peers[-1].sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.stop()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            for peer in peers:
                peer.close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=30)


def hears(client: socket.socket, timeout_s: float = 30) -> bytes | None:
    """None: silence."""
    client.settimeout(timeout_s)
    try:
        return client.recv(100)
    except TimeoutError:
        return None
    except OSError:
        return b""


def test_it_passes_then_refuses_then_passes_again(echo: Proxy) -> None:
    with connect(echo) as client:
        assert hears(client) == b"hello"
        echo.set_mode(ProxyMode.REFUSE)
        assert hears(client) == b"", "what was open is closed"
    with connect(echo) as client:
        assert hears(client) == b""
    echo.set_mode(ProxyMode.PASS)
    with connect(echo) as client:
        assert hears(client) == b"hello"


def test_it_holds_what_comes_until_it_passes_again(echo: Proxy) -> None:
    echo.set_mode(ProxyMode.HOLD)
    with connect(echo) as client:
        assert hears(client, 0.3) is None
        echo.set_mode(ProxyMode.PASS)
        assert hears(client) == b"hello"


def test_a_cut_closes_what_is_open_and_lets_new_connections_pass(echo: Proxy) -> None:
    with connect(echo) as client:
        assert hears(client) == b"hello"
        echo.set_mode(ProxyMode.CUT)
        assert hears(client) == b""
    with connect(echo) as client:
        assert hears(client) == b"hello"


def test_a_connection_that_is_open_is_held_and_loses_nothing(echo: Proxy) -> None:
    with connect(echo) as client:
        assert hears(client) == b"hello"
        echo.set_mode(ProxyMode.HOLD)
        client.sendall(b"kept")
        assert hears(client, 0.2) is None
        echo.set_mode(ProxyMode.CUT)
        assert hears(client) == b"", "a cut ends what is held, too"


def test_a_store_that_is_not_there_closes_the_connection() -> None:
    (port,) = free_ports(1)
    proxy = Proxy(port)
    try:
        with connect(proxy) as client:
            assert hears(client) == b""
    finally:
        proxy.stop()


def test_a_stopped_proxy_takes_no_connection() -> None:
    proxy = Proxy(1)
    proxy.stop()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
