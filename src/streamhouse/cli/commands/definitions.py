"""The commands that `streamhouse pipeline` and `streamhouse table` share: start, stop, list, describe, logs, run.

Both groups use the same words, flags and order of arguments. A subclass of ``DefinitionCommands`` says what is special
about a kind: how it is opened, its columns in a listing, what a reset removes.

PySpark and the table formats are imported by the functions that need them: a listing works without them.
"""

from __future__ import annotations

import json
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

import typer

from streamhouse.cli.commands.spark_runner import (
    RunProgress,
    begin_again,
    log_to_stderr,
    open_application,
    shows_progress,
    stop_signals,
)
from streamhouse.cli.conventions import YesOption, consent, emit, note
from streamhouse.cli.output import Output, OutputOption, show_facts, show_json, show_rows
from streamhouse.cli.setting_flags import ChosenSettings
from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import SCHEMA
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.reports import STALE_MS, RunState, read_report
from streamhouse.spark.definitions.runner import Shown
from streamhouse.spark.definitions.service import DefinitionService, Place, place_of

S = TypeVar("S", bound=DefinitionService[Any])

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="One or more names.")]
Start = Annotated[bool, typer.Option("--start/--no-start", help="Start it at once.")]
Master = Annotated[
    str, typer.Option("--master", help="Where Spark runs: local[*], spark://host:7077 or sc://host:15002.")
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark. Repeatable.")]
Checkpoints = Annotated[
    str | None,
    typer.Option("--checkpoints", metavar="DIR", help="Where checkpoints are; DATA_DIR/checkpoints if not given."),
]
FastStart = Annotated[
    bool, typer.Option("--fast-start", help="Ready some seconds sooner, slower at heavy work; for trying out.")
]

_STATE_COLUMNS: Final = ("name", "wanted", "state", "batch", "rows_per_second", "lag")


class DefinitionCommands(ABC, Generic[S]):
    noun: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """Columns of ``list`` after those that all kinds have."""

    @abstractmethod
    def make(self, place: Place) -> S: ...

    @abstractmethod
    def own_row(self, stored: Stored[Any]) -> dict[str, Any]:
        """What ``list`` shows of this kind alone."""

    @abstractmethod
    def own_facts(self, service: S, stored: Stored[Any]) -> dict[str, Any]:
        """What ``describe`` shows of this kind alone."""

    @abstractmethod
    def reset_plan(self, stored: Stored[Any]) -> list[str]:
        """Lines that say what a reset removes and what it keeps."""

    def open(self, chosen: ChosenSettings, checkpoints: str | None = None) -> S:
        return self.make(place_of(chosen.load().settings, checkpoints))

    def shared(self) -> dict[str, Callable[..., None]]:
        return {
            "start": self.start,
            "stop": self.stop,
            "list": self.list_,
            "describe": self.describe,
            "logs": self.logs,
            "run": self.run,
        }

    def create(self, service: S, spec: Any, *, start: bool) -> None:
        service.create(spec, WantedState.RUNNING if start else WantedState.STOPPED)
        after = "run`" if start else f"start {spec.name}`"
        what = "runs it" if start else "starts it"
        note(f"created {spec.name}; `streamhouse {self.noun} {after} {what}")

    def start(
        self,
        chosen: ChosenSettings,
        names: Names,
        reset: Annotated[bool, typer.Option("--reset", help="Begin again, from where the definition starts.")] = False,
        yes: YesOption = False,
    ) -> None:
        """Start the named definitions; a runner picks them up within a second."""
        service = self.open(chosen)
        if reset:
            consent([line for name in names for line in self.reset_plan(service.get(name))], yes=yes)
        for name in names:
            service.want(name, WantedState.RUNNING, reset=reset)
            note(f"{name} is started" + (", in a new generation" if reset else ""))
        if not service.has_runner():
            note(f"no runner is there: start one with `streamhouse {self.noun} run`")

    def stop(self, chosen: ChosenSettings, names: Names) -> None:
        """Stop the named definitions; when they are started again, they go on where they stopped."""
        service = self.open(chosen)
        for name in names:
            service.want(name, WantedState.STOPPED)
            note(f"{name} is stopped")

    def list_(self, chosen: ChosenSettings, output: OutputOption = Output.TABLE) -> None:
        """List all definitions: the wanted state, and what the runner reports."""
        service = self.open(chosen)
        now_ms = service.now_ms()
        rows = [self._row(stored, now_ms) for stored in service.list()]
        show_rows([*_STATE_COLUMNS, *self.columns], rows, output)

    def describe(self, chosen: ChosenSettings, name: Name, output: OutputOption = Output.TABLE) -> None:
        """Show definition and state; passwords are masked."""
        service = self.open(chosen)
        stored = service.get(name)
        facts = {**self._row(stored, service.now_ms()), **_report_facts(stored), **self.own_facts(service, stored)}
        show_facts(facts, output)

    def logs(
        self,
        chosen: ChosenSettings,
        name: Name,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Print events: starts, stops, failures and their reasons."""
        service, seen, waiting = self.open(chosen), (0, 0), threading.Event()
        while True:
            found = events(service.get(name), after=seen)
            documents = [{"at": when(place[0]), "what": what} for place, what in found]
            if output is Output.JSON and not follow:
                show_json(documents)
            else:
                for each in documents:
                    emit(
                        json.dumps(each, ensure_ascii=False)
                        if output is Output.JSON
                        else f"{each['at']}  {each['what']}"
                    )
            seen = found[-1][0] if found else seen
            if not follow:
                return
            waiting.wait(1)

    def run(
        self,
        chosen: ChosenSettings,
        names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Only these.")] = None,
        master: Master = "local[*]",
        checkpoints: Checkpoints = None,
        conf: Conf = None,
        once: Annotated[bool, typer.Option("--once", help="Read what there is, and end.")] = False,
        until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing is wanted any more.")] = False,
        fast_start: FastStart = False,
        parent: Annotated[
            int | None, typer.Option("--parent", hidden=True, help="End when this process has ended.")
        ] = None,
    ) -> None:
        """Run a runner: it starts what is wanted, restarts it after failures, and resumes where each target stands."""
        service = self.open(chosen, checkpoints)
        for name in names or []:
            service.get(name)
        log_to_stderr(events=not shows_progress())
        config = spark_config(conf)
        stopping = stop_signals(parent)
        isolated = self.isolated(chosen, master, checkpoints, conf, fast_start) if not names and not once else None
        application = open_application(
            master,
            name=f"streamhouse {self.noun}s",
            config=config,
            fast_start=fast_start,
            stopping=stopping,
            aside=parent is not None,
        )
        note(f"{self.noun}s run on {master}; checkpoints in {service.place.checkpoints}")
        elsewhere: list[Shown] = []

        def look(everything: Sequence[Stored[Any]]) -> None:
            if isolated is not None:
                isolated.look(everything)
                elsewhere[:] = isolated.reports(everything)

        try:
            with RunProgress(self.noun) as show:
                went_well = service.run(
                    application,
                    stopping,
                    only=names or (),
                    until_idle=until_idle,
                    once=once,
                    show=lambda shown: show([*shown, *elsewhere]),
                    beside=look,
                )
        except BaseException:
            application.stop()
            raise
        finally:
            if isolated is not None:
                isolated.stop()
        if not went_well:
            begin_again(stopping)
        application.stop()
        note(f"stopped; every {self.noun} goes on where its target stands")

    def isolated(
        self, chosen: ChosenSettings, master: str, checkpoints: str | None, conf: list[str] | None, fast_start: bool
    ) -> Any:
        """What runs definitions in applications of their own; None for a kind that has none."""
        return None

    def _row(self, stored: Stored[Any], now_ms: int) -> dict[str, Any]:
        report = read_report(stored.report)
        return {
            "name": stored.name,
            "wanted": stored.wanted.value,
            "state": state_of(stored, now_ms),
            "batch": report.batch,
            "rows_per_second": round(report.rows_per_second, 1),
            "lag": report.lag,
            **self.own_row(stored),
        }


def spark_config(conf: list[str] | None) -> dict[str, str]:
    config: dict[str, str] = {}
    for given in conf or []:
        name, equals, value = given.partition("=")
        if not equals or not name:
            raise InvalidSetting(f"--conf {given[:80]!r} is not NAME=VALUE")
        config[name] = value
    return config


def same_command(chosen: ChosenSettings, *words: str, flags: Sequence[tuple[str, object]]) -> list[str]:
    """A command line of ours with the settings of this one. ``flags``: None is left out, True has no value."""
    command = [sys.executable, "-m", "streamhouse", *words]
    for flag, value in (*flags, ("--config", chosen.config_path)):
        if value is not None and value is not False:
            command += [flag] if value is True else [flag, str(value)]
    for setting in SCHEMA:
        typed = chosen.flags.get(setting.key)
        if isinstance(typed, bool):
            command.append(setting.flag if typed else f"--no-{setting.flag.removeprefix('--')}")
        elif typed is not None:
            command += [setting.flag, str(typed)]
    return command


def read_text(file: Path) -> str:
    """Raises InvalidSetting."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"cannot read {file}: {error}") from error


def removal_lines(name: str, checkpoints: Sequence[Any], removed: Sequence[str], kept: Sequence[str]) -> list[str]:
    """Lines that say what deleting a definition removes and keeps."""
    lines = [f"{name}: removes: {what}" for what in ("its definition and log", *removed)]
    lines += [f"{name}: removes: the checkpoint {each.path}" for each in checkpoints]
    if not checkpoints:
        lines.append(f"{name}: no checkpoints are here; pass --checkpoints if its runner used another directory")
    return [*lines, *(f"{name}: keeps: {what}" for what in kept)]


def when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def events(stored: Stored[Any], *, after: tuple[int, int]) -> list[tuple[tuple[int, int], str]]:
    """Events after a place. A place is a time and a count of events at that time: --follow goes on after the last."""
    found: list[tuple[tuple[int, int], str]] = []
    count, at_ms = 0, -1
    for event in read_report(stored.report).events:
        count = count + 1 if event.at_ms == at_ms else 1
        at_ms = event.at_ms
        if (at_ms, count) > after:
            found.append(((at_ms, count), event.what))
    return found


def state_of(stored: Stored[Any], now_ms: int) -> str:
    """The reported state, corrected for a runner that was killed and could not report that."""
    report = read_report(stored.report)
    is_live = report.state in (RunState.STARTING, RunState.RUNNING, RunState.FAILED)
    if is_live and now_ms - stored.report_at_ms > STALE_MS:
        return "no runner" if stored.wanted is WantedState.RUNNING else RunState.STOPPED.value
    if not is_live and stored.wanted is WantedState.RUNNING and report.state is not RunState.FINISHED:
        return "waiting"
    return report.state.value


def _report_facts(stored: Stored[Any]) -> dict[str, Any]:
    report = read_report(stored.report)
    return {
        "rows": report.rows,
        "failures": report.failures,
        "error": report.error,
        "retry_at": None if report.retry_at_ms is None else when(report.retry_at_ms),
        "runner": report.runner,
        "reported_at": when(stored.report_at_ms) if stored.report else None,
        "version": stored.version,
        "generation": stored.generation,
        "created_at": when(stored.created_at_ms),
        "updated_at": when(stored.updated_at_ms),
    }
