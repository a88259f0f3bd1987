"""The protocol of a front end: how an agent starts and stops a server, whatever protocol its clients speak.

    bind     take the addresses, so that the agent can register them; let no client in yet
    open     let clients in; called once the agent is a member of the cluster
    drain    let no new client in, start no new request, and answer the requests that are under way
    close    disconnect every client; nothing runs afterwards

An agent hands its partitions over between ``open`` and ``drain``: requests that come in that time get an answer that
sends their clients to the next leader. ``drain`` and ``close`` may be called more than once, and in any state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from streamhouse.broker.nodes import Endpoint


class FrontEnd(Protocol):
    @property
    def addresses(self) -> Sequence[str]:
        """``host:port`` that clients are told to connect to, one for each listener. Known after ``bind``."""
        ...

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The same by the listener's name: a client is told the address of the listener that it came through."""
        ...

    async def bind(self) -> None:
        """Raises ConfigError if an address cannot be taken. None is kept then."""
        ...

    async def open(self) -> None: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...
