"""Sockets of a front end: one port on all addresses of a name, and errors that name the setting to change."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from streamhouse.core.errors import ConfigError
from streamhouse.gateway import listening
from streamhouse.gateway.listening import bound_sockets, cannot_listen

FLAG = "--some-listen"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


class Names:
    """The addresses that a name has, as the resolver would give them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
        found: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


async def test_any_free_port_is_taken_and_the_socket_listens_to_nothing_yet() -> None:
    (bound,) = await bound_sockets("127.0.0.1", 0, flag=FLAG)
    with bound:
        host, port = bound.getsockname()
        assert host == "127.0.0.1"
        assert port > 0
        assert bound.getblocking() is False
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))


async def test_all_addresses_of_a_name_get_one_port_and_one_named_twice_one_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Names(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.1")
    sockets = await bound_sockets("many", 0, flag=FLAG)
    names = [one.getsockname() for one in sockets]
    for one in sockets:
        one.close()
    assert [host for host, _ in names] == ["127.0.0.1", "127.0.0.2"]
    assert len({port for _, port in names}) == 1


async def test_a_later_address_that_this_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, "127.0.0.1", "192.0.2.1")
    sockets = await bound_sockets("half", 0, flag=FLAG)
    assert [one.getsockname()[0] for one in sockets] == ["127.0.0.1"]
    sockets[0].close()


async def test_a_first_address_that_this_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, "192.0.2.1", "127.0.0.1")
    with pytest.raises(ConfigError, match=f"cannot listen on elsewhere:0: .*choose another {FLAG}"):
        await bound_sockets("elsewhere", 0, flag=FLAG)


async def test_a_taken_port_names_it_and_the_flag(taken_port: int) -> None:
    with pytest.raises(ConfigError, match=f"another process listens on 127.0.0.1:{taken_port}") as refused:
        await bound_sockets("127.0.0.1", taken_port, flag=FLAG)
    assert FLAG in str(refused.value.hint)


async def test_when_one_address_is_taken_the_sockets_of_the_others_are_closed(
    monkeypatch: pytest.MonkeyPatch, taken_port: int
) -> None:
    Names(monkeypatch, "127.0.0.2", "127.0.0.1")
    made: list[socket.socket] = []
    bind = listening._bound

    def note(*args: Any) -> socket.socket:
        made.append(bind(*args))
        return made[-1]

    monkeypatch.setattr(listening, "_bound", note)
    with pytest.raises(ConfigError, match="another process"):
        await bound_sockets("both", taken_port, flag=FLAG)
    assert [one.fileno() for one in made] == [-1]


async def test_a_name_that_has_no_address_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="cannot listen on nowhere:1: Name or service not known") as refused:
        await bound_sockets("nowhere", 1, flag=FLAG)
    assert FLAG in str(refused.value.hint)


def test_an_error_without_words_still_says_something() -> None:
    assert "cannot listen on h:1: odd" in str(cannot_listen("h", 1, OSError("odd"), flag=FLAG))
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert "Permission denied" in str(cannot_listen("h", 1, denied, flag=FLAG))
