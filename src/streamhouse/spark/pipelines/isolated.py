"""Pipelines with a Spark application of their own: a process each, started again after a pause when it ends.

Such a process is a runner for one pipeline. It claims and reports by itself; here is only seen to that it is there.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.pipelines.backoff import failures_after, pause_ms
from streamhouse.spark.pipelines.catalog import StoredPipeline

LOG: Final = logging.getLogger("streamhouse.pipelines")
_STOP_S: Final = 40.0


@dataclass(slots=True, kw_only=True)
class _Child:
    process: subprocess.Popen[bytes] | None = None
    started_ms: int = 0
    retry_ms: int = 0
    failures: int = 0


class IsolatedRunners:
    """``command`` runs the pipeline whose name is appended to it."""

    def __init__(self, command: Sequence[str], clock: Clock) -> None:
        self._command = tuple(command)
        self._clock = clock
        self._children: dict[str, _Child] = {}

    def look(self, pipelines: Iterable[StoredPipeline]) -> None:
        wanted = {each.name for each in pipelines if each.spec.isolated and each.wanted is WantedState.RUNNING}
        for name in wanted:
            self._keep(name, self._children.setdefault(name, _Child()))
        for name in [name for name in self._children if name not in wanted]:
            child = self._children[name]
            if child.process is None or child.process.poll() is not None:
                del self._children[name]
            else:
                child.process.terminate()  # it stops its query and says so; sent again until it has

    def stop(self) -> None:
        alive = [child.process for child in self._children.values() if child.process is not None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _keep(self, name: str, child: _Child) -> None:
        now_ms = self._clock.boot_ms()
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                return
            child.process = None
            child.failures = failures_after(child.failures, now_ms - child.started_ms)
            child.retry_ms = now_ms + pause_ms(child.failures)
            LOG.warning(
                "%s: its own application ended with code %d; next try in %d ms", name, code, pause_ms(child.failures)
            )
        if now_ms >= child.retry_ms:
            child.started_ms = now_ms
            child.process = subprocess.Popen([*self._command, name], stdin=subprocess.DEVNULL)
