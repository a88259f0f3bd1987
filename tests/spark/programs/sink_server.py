"""An agent that kills itself in the middle of an adoption, if told to.

sink_server.py READY_FILE      settings from STREAMHOUSE_* variables; DIES="before:3" or "after:3" names an adoption.
                               Of several agents with one DIES_MARKER only the first dies: it creates that file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from streamhouse.app.platform import StreamHouse
from streamhouse.app.process import run_until_stopped
from streamhouse.core.settings import load_settings
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.metadata.sqlite.store import SqliteMetadata


def arm(where: str, count: int) -> None:
    left = [count]

    def reached(stage: str) -> None:
        if stage == where:
            left[0] -= 1
            if left[0] == 0 and is_first():
                os.kill(os.getpid(), signal.SIGKILL)

    for store in (SqliteMetadata, PostgresMetadata):
        inner = store.adopt_intent

        async def adopt_intent(self: Any, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            reached("before")
            outcome = await inner(self, *args, **kwargs)
            reached("after")
            return outcome

        store.adopt_intent = adopt_intent  # type: ignore[method-assign]


def is_first() -> bool:
    marker = os.environ.get("DIES_MARKER")
    try:
        if marker is not None:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


async def ready(sh: StreamHouse) -> None:
    Path(sys.argv[1]).touch()  # noqa: ASYNC240 -- once


if __name__ == "__main__":
    if dies := os.environ.get("DIES"):
        stage, _, number = dies.partition(":")
        arm(stage, int(number))
    asyncio.run(run_until_stopped(load_settings().settings, ready=ready))
