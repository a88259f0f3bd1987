"""Works that a worker dies of, or fails at, at a chosen step of their first attempt. Workers import this file."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from typing import Any

from streamhouse.maintenance.compaction.commit import ItemCompaction
from streamhouse.spark.maintenance.compaction import CompactItem, ItemDone
from streamhouse.spark.maintenance.tasks import TaskStores, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyCompactItem(CompactItem):
    step: str
    """The step at whose end the fault comes: "rewritten", "begun" or "applied"."""
    fault: str
    """ "kill" ends the Python worker at once; "raise" raises an error that is none of ours."""
    marker: str
    """The file that the first attempt leaves, so that the next one works."""

    async def run(self, stores: TaskStores) -> ItemDone:
        usual_rewrite, usual_send, sent = ItemCompaction._rewrite, ItemCompaction._surely, 0

        async def rewrite(compaction: ItemCompaction, *given: Any) -> Any:
            rewritten = await usual_rewrite(compaction, *given)
            self._reached("rewritten")
            return rewritten

        async def send(compaction: ItemCompaction, call: Any) -> Any:
            nonlocal sent
            answer = await usual_send(compaction, call)
            sent += 1
            self._reached("begun" if sent == 1 else "applied")
            return answer

        ItemCompaction._rewrite, ItemCompaction._surely = rewrite, send  # type: ignore[assignment,method-assign]
        try:
            return await CompactItem.run(self, stores)
        finally:
            ItemCompaction._rewrite, ItemCompaction._surely = usual_rewrite, usual_send  # type: ignore[method-assign]

    def _reached(self, step: str) -> None:
        if step != self.step:
            return
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(f"the task fails when its item is {step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndlessWork(Work[None]):
    """Ends only if it is cancelled. It leaves ``marker`` when it has begun."""

    doing = "waiting"
    marker: str

    async def run(self, stores: TaskStores) -> None:
        os.close(os.open(self.marker, os.O_CREAT))
        await asyncio.sleep(3_600)
