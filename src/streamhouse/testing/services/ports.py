"""Free ports on the loopback, for servers that are about to start."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from itertools import islice

from streamhouse.core.errors import ServiceFailed
from streamhouse.core.randomness import SystemRandomness

LOOPBACK = "127.0.0.1"

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes the port of a server that is being
# restarted; above the ports of well-known services.
_LOW, _HIGH = 20_000, 32_000
RANGE_VARIABLE = "STREAMHOUSE_SERVICE_PORTS"
"""LOW-HIGH: a narrower range. Parallel test processes have one each, so that a port that one of them will use again
after a restart is not taken by another."""

_given: set[int] = set()
_giving = threading.Lock()


def free_ports(count: int) -> tuple[int, ...]:
    """``count`` ports that are free now and that this process was not given before.

    A server may take its port much later, so a port that was given out looks free for some time. The search begins at a
    random port, to keep parallel runs apart. Ports are given a second time only when all of the range were given once.
    """
    low, high = _range()
    start = int(SystemRandomness().uniform(low, high))
    from_start = [*range(start, high), *range(low, start)]
    with _giving:
        for candidates in ([port for port in from_start if port not in _given], from_start):
            found = tuple(islice(filter(is_free, candidates), count))
            if len(found) == count:
                _given.update(found)
                return found
    raise ServiceFailed(f"no {count} free ports between {low} and {high} on {LOOPBACK}")


def share_of_ports(number: int, of: int) -> str:
    """The value of RANGE_VARIABLE for one of several processes, counted from 0."""
    width = (_HIGH - _LOW) // of
    return f"{_LOW + number * width}-{_LOW + (number + 1) * width}"


def _range() -> tuple[int, int]:
    given = os.environ.get(RANGE_VARIABLE)
    if not given:
        return _LOW, _HIGH
    low, _, high = given.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) < int(high) <= 65_535):
        raise ServiceFailed(f"{RANGE_VARIABLE} is {given!r}, not a range of ports", hint="for example 20000-24000")
    return int(low), int(high)


def is_free(port: int) -> bool:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
