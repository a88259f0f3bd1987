"""A runner's process: signals, logs, the start of Spark, progress on a terminal, a new process when Spark has died."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streamhouse.cli.conventions import note
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import progress
from streamhouse.spark.definitions.runner import Shown

if TYPE_CHECKING:
    from streamhouse.spark.definitions.application import Application

_LOGGER = "streamhouse.definitions"
_MAX_WAITING_LINES = 1_000
_MARK = "\0started\n"
_MARK_S = 5.0


def stop_signals(parent: int | None = None) -> threading.Event:
    """Set by Ctrl-C, by SIGTERM, and when the process ``parent`` has ended."""
    stopping = threading.Event()
    _take_signals(stopping)
    if parent is not None:

        def watch() -> None:
            while os.getppid() == parent and not stopping.wait(1):
                pass
            stopping.set()

        threading.Thread(target=watch, name="parent", daemon=True).start()
    return stopping


def _take_signals(stopping: threading.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())


def log_to_stderr(*, events: bool) -> None:
    """``events``: starts, stops and failures, line by line, where no table shows them."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_CurrentStderr()])
    logging.getLogger(_LOGGER).setLevel(logging.INFO if events else logging.ERROR)


def open_application(
    master: str,
    *,
    name: str,
    config: dict[str, str],
    fast_start: bool,
    stopping: threading.Event | None = None,
    aside: bool = False,
    says_so: bool = True,
) -> Application:
    """PySpark installs a handler for Ctrl-C that raises KeyboardInterrupt; with ``stopping``, ours is installed again.
    ``aside`` keeps Java's output away from the table on the terminal, even if another process draws it. ``says_so``
    shows on a terminal that Spark is starting; not beside a progress bar that already does.
    """
    from streamhouse.spark.definitions.application import Application, quieten

    quieten()
    shown = progress("starting Spark") if says_so else nullcontext()
    with _output_aside(wanted=aside or shows_progress()), shown:
        application = Application.open(master, name=name, config=config, fast_start=fast_start)
    if stopping is not None:
        _take_signals(stopping)
    return application


@contextmanager
def _output_aside(*, wanted: bool) -> Iterator[None]:
    """Processes started within write their stderr to us, and we write it above the table on the terminal. What they
    write while they start is shown only if the start fails: every Java that runs Spark prints the same six lines.
    """
    if not wanted:
        yield
        return
    (reading, writing), terminal, ours = os.pipe(), os.dup(2), sys.stderr
    waiting: list[str] = []
    started = threading.Event()

    def listen() -> None:
        with os.fdopen(reading, errors="replace") as lines:
            for line in lines:
                if line == _MARK:
                    started.set()
                elif started.is_set():
                    note(line.rstrip())
                elif len(waiting) < _MAX_WAITING_LINES:
                    waiting.append(line.rstrip())

    threading.Thread(target=listen, name="spark-output", daemon=True).start()
    sys.stderr = os.fdopen(os.dup(terminal), "w", buffering=1)
    os.dup2(writing, 2)
    failed = True
    try:
        yield
        failed = False
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        sys.stderr.close()
        sys.stderr = ours
        os.write(writing, _MARK.encode())
        os.close(writing)
        started.wait(_MARK_S)
        for line in waiting if failed else ():
            note(line)


def begin_again(stopping: threading.Event) -> None:
    """Spark's JVM has died, and PySpark cannot start another one in the same process: replace the process."""
    if stopping.is_set():
        raise typer.Exit(ExitCode.FAILURE)
    note("Spark has died; starting it again")
    stopping.wait(2)
    os.execv(sys.executable, [sys.executable, "-m", "streamhouse", *sys.argv[1:]])


def shows_progress() -> bool:
    return sys.stderr.isatty()


class RunProgress:
    """A table on the terminal, kept up to date: state, batch, rows/s, lag. Without a terminal there is the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._live: Live | None = None

    def __enter__(self) -> Callable[[list[Shown]], None]:
        if not shows_progress():
            return lambda shown: None
        # A table that is too long is cut at the end of the screen: lines that have scrolled away cannot be drawn again.
        self._live = Live(console=Console(stderr=True), auto_refresh=False, vertical_overflow="ellipsis")
        self._live.start()
        return self._show

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, shown: list[Shown]) -> None:
        assert self._live is not None
        self._live.update(progress_table(self._what, shown), refresh=True)


def progress_table(what: str, shown: list[Shown]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(what, overflow="fold")
    table.add_column("state", no_wrap=True)
    for column in ("batch", "rows", "rows/s", "lag"):
        table.add_column(column, justify="right", no_wrap=True)
    if any(each.report.error for each in shown):
        table.add_column("error", overflow="fold")
    for each in shown:
        report = each.report
        batch, lag = ("-" if value is None else f"{value:,}" for value in (report.batch, report.lag))
        cells = [each.name, report.state.value, batch, f"{report.rows:,}", f"{report.rows_per_second:,.0f}", lag]
        table.add_row(*(Text(cell) for cell in (*cells, report.error[:200])[: len(table.columns)]))
    if not shown:
        table.add_row(Text("nothing is wanted", style="dim"))
    return table


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to the sys.stderr of the moment: while a table is shown, that prints above the table."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        """Ignore the value, because the handler always writes to the present sys.stderr."""
