"""Sockets of a front end, bound to its addresses, and the errors that say which setting to change."""

from __future__ import annotations

import asyncio
import errno
import socket

from streamhouse.core.errors import ConfigError


async def bound_sockets(host: str, port: int, *, flag: str) -> list[socket.socket]:
    """One for each address the host's name has, all on one port. ``flag`` is the one that chooses the address.

    Raises ConfigError; no socket is kept then.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise cannot_listen(host, port, error, flag=flag) from error
    sockets: list[socket.socket] = []
    common_port = port
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            sockets.append(_bound(family, kind, protocol, (address[0], common_port, *address[2:])))
        except OSError as error:
            if sockets and error.errno == errno.EADDRNOTAVAIL:
                continue
            for one in sockets:
                one.close()
            raise cannot_listen(host, port, error, flag=flag) from error
        common_port = sockets[0].getsockname()[1]
    return sockets


def cannot_listen(host: str, port: int, error: OSError, *, flag: str) -> ConfigError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"another process listens on {where}",
            hint=f"stop it, or choose another address with {flag} (port 0 takes any free one)",
        )
    return ConfigError(f"cannot listen on {where}: {error.strerror or error}", hint=f"choose another {flag}")


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made
