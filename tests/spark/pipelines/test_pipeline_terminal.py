"""The commands on a terminal, and beside one: tables that are drawn over, questions, and stdout for data alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from terminal import Terminal

from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.reports import Report, RunState
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.pipelines.parsing import StoredPipeline, load_pipeline
from streamhouse.spark.pipelines.service import Pipelines
from streamhouse.testing.plugin import RunningStreamHouse

RunsOn = Callable[..., Terminal]

SHOWS = """
import logging
import sys

from streamhouse.cli.commands.spark_runner import RunProgress, log_to_stderr
from streamhouse.spark.definitions.reports import Report, RunState
from streamhouse.spark.definitions.runner import Shown

log_to_stderr(events=False)
with RunProgress("pipeline") as show:
    for batch in range(30):
        failed = Report(state=RunState.FAILED, error="Spark has stopped the query, " + "and says a lot about it " * 20)
        running = Report(state=RunState.RUNNING, batch=batch, rows=batch * 1234, rows_per_second=617.2, lag=29 - batch)
        shown = [Shown(name="per-minute", report=running)]
        show([*shown, Shown(name="broken", report=failed)] if batch < 20 else shown)
        if batch == 5:
            logging.getLogger("somewhere").warning("the metadata store is away")
print("done", file=sys.stderr)
"""


@pytest.fixture
def on_terminal() -> Iterator[RunsOn]:
    opened: list[Terminal] = []

    def run(*command: str, **more: object) -> Terminal:
        opened.append(Terminal(command, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield run
    for terminal in opened:
        terminal.close()


@pytest.mark.parametrize("columns", [60, 120])
def test_progress_is_one_table_that_is_drawn_over(on_terminal: RunsOn, columns: int) -> None:
    terminal = on_terminal(sys.executable, "-c", SHOWS, columns=columns)
    assert terminal.end() == 0, terminal.raw
    seen = [line for line in terminal.screen() if line.strip()]
    assert seen[0] == "the metadata store is away"
    assert seen[1].split() == ["pipeline", "state", "batch", "rows", "rows/s", "lag"]
    assert seen[3].split() == ["per-minute", "running", "29", "35,786", "617", "0"]
    assert seen[4:] == ["done"]
    assert max(len(line) for line in terminal.screen()) <= columns
    assert terminal.raw.count("\x1b[?25l") == terminal.raw.count("\x1b[?25h") == 1  # the cursor is given back


@dataclass(frozen=True, kw_only=True)
class Defined:
    pipelines: Pipelines
    stored: StoredPipeline
    data_dir: str

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "streamhouse", "pipeline", *words, "--data-dir", self.data_dir]

    def report(self, told: Report) -> None:
        self.pipelines.ask(lambda catalog: catalog.report(self.stored, told.to_json()))


@pytest.fixture
def defined(streamhouse: RunningStreamHouse, tmp_path: Path) -> Defined:
    data_dir = str(streamhouse.api.settings.data_dir)
    pipelines = Pipelines(Place(address_options={"dataDir": data_dir}, checkpoints=str(tmp_path / "checkpoints")))
    document = {"name": "p", "sources": ["orders"], "sql": "SELECT value FROM orders", "target": {"topic": "out"}}
    stored = pipelines.create(load_pipeline(document), WantedState.STOPPED)
    return Defined(pipelines=pipelines, stored=stored, data_dir=data_dir)


def test_logs_are_followed_until_ctrl_c(on_terminal: RunsOn, defined: Defined) -> None:
    told = Report(state=RunState.RUNNING).telling(1_700_000_000_000, "started at the beginning")
    defined.report(told)
    follow = defined.command("logs", "p", "--follow")
    terminal, piped = on_terminal(*follow), on_terminal(*follow, "-o", "json", pipe_stdout=True)
    for each in (terminal, piped):
        each.wait_for(lambda lines, each=each: "at the beginning" in each.piped + "".join(lines))  # type: ignore[misc]
    defined.report(told.telling(1_700_000_001_000, "failed: no luck; next try in 1 s"))
    for each in (terminal, piped):
        each.wait_for(lambda lines, each=each: "no luck" in each.piped + "".join(lines))  # type: ignore[misc]
        each.type("\x03")
        assert each.end() == 130
    expected = [
        "2023-11-14T22:13:20.000Z  started at the beginning",
        "2023-11-14T22:13:21.000Z  failed: no luck; next try in 1 s",
    ]
    assert terminal.screen() == [*expected, "^Cinterrupted", ""]
    assert [f"{line['at']}  {line['what']}" for line in map(json.loads, piped.piped.splitlines())] == expected
    assert piped.screen() == ["^Cinterrupted", ""]


def test_what_removes_things_asks_first(on_terminal: RunsOn, defined: Defined) -> None:
    for answer, code in (("n", 1), ("", 1), ("y", 0)):
        terminal = on_terminal(*defined.command("delete", "p"), pipe_stdout=True)
        terminal.wait_for(lambda lines: "go on? [y/N]" in lines[-1])
        terminal.type(f"{answer}\n")
        assert terminal.end() == code
        assert "p: keeps: every row in topic out" in terminal.screen()
        assert terminal.screen()[-2] == ("deleted p" if code == 0 else "nothing was changed")
        assert terminal.piped == ""
    assert defined.pipelines.list() == []
