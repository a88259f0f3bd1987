"""Free ports on the loopback, for servers that are about to start."""

from __future__ import annotations

import contextlib
import socket

from streamhouse.core.errors import ServiceFailed
from streamhouse.core.randomness import Randomness, SystemRandomness

LOOPBACK = "127.0.0.1"

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes the port of a server that is being
# restarted; above the ports of well-known services.
_LOW, _HIGH = 20_000, 32_000


def free_ports(count: int, randomness: Randomness | None = None) -> tuple[int, ...]:
    """``count`` ports that nobody listens on now; from a random start, to keep parallel runs apart."""
    start = int((randomness or SystemRandomness()).uniform(_LOW, _HIGH))
    found: list[int] = []
    for step in range(_HIGH - _LOW):
        port = _LOW + (start - _LOW + step) % (_HIGH - _LOW)
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return tuple(found)
    raise ServiceFailed(f"no {count} free ports between {_LOW} and {_HIGH} on {LOOPBACK}")


def is_free(port: int) -> bool:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
