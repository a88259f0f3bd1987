"""Pipelines with a Spark application of their own: one process each, started again after a pause when it ends.

Such a process is a runner for one pipeline, which claims and reports by itself. This module only starts and ends it.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.reports import read_report
from streamhouse.spark.definitions.runner import Shown
from streamhouse.spark.definitions.supervised import failures_after, pause_ms
from streamhouse.spark.pipelines.parsing import StoredPipeline

LOG: Final = logging.getLogger("streamhouse.definitions")
_STOP_S: Final = 40.0
_MAX_LINE_BYTES: Final = 64 * 1024


@dataclass(slots=True, kw_only=True)
class _Child:
    process: subprocess.Popen[bytes] | None = None
    started_ms: int = 0
    retry_ms: int = 0
    failures: int = 0


def _is_wanted(stored: StoredPipeline) -> bool:
    return stored.spec.isolated and stored.wanted is WantedState.RUNNING


class IsolatedRunners:
    """``command`` runs the pipeline whose name is appended to it. ``tell`` is called with each line that such a process
    writes to stderr; None: the processes share our stderr.
    """

    def __init__(self, command: Sequence[str], clock: Clock, *, tell: Callable[[str], None] | None = None) -> None:
        self._command = tuple(command)
        self._clock = clock
        self._tell = tell
        self._children: dict[str, _Child] = {}

    def look(self, pipelines: Iterable[StoredPipeline]) -> None:
        wanted = {each.name for each in pipelines if _is_wanted(each)}
        for name in wanted:
            self._keep(name, self._children.setdefault(name, _Child()))
        for name in [name for name in self._children if name not in wanted]:
            child = self._children[name]
            if child.process is None or child.process.poll() is not None:
                del self._children[name]
            else:
                child.process.terminate()  # it stops its query and ends; the signal is sent at every look until then

    def reports(self, pipelines: Iterable[StoredPipeline]) -> list[Shown]:
        """What their own processes have reported last."""
        return [Shown(name=each.name, report=read_report(each.report)) for each in pipelines if _is_wanted(each)]

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
            child.process = subprocess.Popen(
                [*self._command, name],
                stdin=subprocess.DEVNULL,
                stderr=None if self._tell is None else subprocess.PIPE,
            )
            if self._tell is not None:
                threading.Thread(
                    target=self._listen, args=(child.process,), name=f"isolated-{name}", daemon=True
                ).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        assert self._tell is not None
        with process.stderr:
            while line := process.stderr.readline(_MAX_LINE_BYTES):
                self._tell(line.decode(errors="replace").rstrip())
