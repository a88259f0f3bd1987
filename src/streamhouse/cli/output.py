"""Data for people and for machines: `--output table` and `--output json`; and progress, for people.

A table on a terminal has colours and fits the window; anywhere else it is plain aligned text, one row a line, nothing
cut, so that grep and awk can be trusted with it. JSON is one document with sorted, stable field names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Final, Protocol

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from streamhouse.cli.conventions import emit

_ANY_WIDTH: Final = 10_000  # characters; more than any row has
_FEW_WORDS: Final = 20  # characters


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="A table for people, or JSON for machines.")]


@contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done, on stderr and on a terminal only. Yields a function that changes the text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with Console(stderr=True).status(doing) as status:
        yield lambda text: status.update(text)


class SetProgress(Protocol):
    def __call__(self, text: str, *, done: int, total: int | None) -> None:
        """``total`` is None while it is not known."""


@contextmanager
def progress_bar(doing: str) -> Iterator[SetProgress]:
    """Show how far something is, on stderr and on a terminal only. Yields a function that changes text and bar."""
    if not sys.stderr.isatty():
        yield lambda text, *, done, total: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    shown = Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    )
    with shown as bar:
        task = bar.add_task(doing, total=None)
        yield lambda text, *, done, total: bar.update(task, description=text, completed=done, total=total)


def show_json(document: object) -> None:
    emit(json.dumps(document, indent=2, ensure_ascii=False))


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, cut: str = "", not_on_a_terminal: Collection[str] = ()
) -> None:
    """On a terminal, cells of the column ``cut`` end with an ellipsis where a row would not fit the window, and the
    columns ``not_on_a_terminal`` are left out."""
    if not sys.stdout.isatty():
        emit(plain_table(columns, rows))
        return
    shown = [number for number, column in enumerate(columns) if column not in not_on_a_terminal]
    _show_rich([columns[each] for each in shown], [[row[each] for each in shown] for row in rows], cut)


def show_rows(columns: Sequence[str], rows: Sequence[Mapping[str, object]], output: Output) -> None:
    """A table shows ``columns``; JSON has all fields."""
    if output is Output.JSON:
        show_json(rows)
    else:
        show_table(columns, [[_cell(row[column]) for column in columns] for row in rows])


def show_facts(document: Mapping[str, object], output: Output) -> None:
    """Shows one document: a line for each field."""
    if output is Output.JSON:
        show_json(document)
    else:
        show_table(["what", "value"], [[what, _cell(value)] for what, value in document.items()])


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    return json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, dict) else str(value)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[column.upper() for column in columns], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _show_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], cut: str = "") -> None:
    console = Console()
    table = _rich_table(columns, rows)
    if cut:
        whole_width = console.measure(table, options=console.options.update_width(_ANY_WIDTH)).maximum
        table = _rich_table(columns, _cut_cells(rows, columns.index(cut), by=whole_width - console.width))
    console.print(table)


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _cut_cells(rows: Sequence[Sequence[str]], column: int, *, by: int) -> Sequence[Sequence[str]]:
    """Make the longest cells of a column so much shorter, but none shorter than a few words."""
    most = max(max((len(row[column]) for row in rows), default=0) - by, _FEW_WORDS)
    return [
        [f"{cell[: most - 1]}…" if number == column and len(cell) > most else cell for number, cell in enumerate(row)]
        for row in rows
    ]
