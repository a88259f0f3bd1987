"""Helpers for asyncio tasks. No state."""

from __future__ import annotations

import asyncio
from typing import Any


def retrieve(future: asyncio.Future[Any]) -> None:
    """A done callback: mark the error as seen.

    For a task whose callers may all have gone. Else asyncio logs "Task exception was never retrieved", with a
    traceback, when the task is collected.
    """
    if not future.cancelled():
        future.exception()
