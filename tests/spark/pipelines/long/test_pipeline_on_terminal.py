"""`pipeline run` and `table run` as a person sees them: one table that is drawn over, and nothing that disturbs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline_ground import per_minute, rows_per_minute
from runner_ground import COUNT, Shop
from terminal import Terminal

from streamhouse.testing.plugin import RunningStreamHouse

HEADER = ["state", "batch", "rows", "rows/s", "lag"]


@contextmanager
def on_terminal(shop: Shop, *words: str) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "streamhouse", *words, "--master", "local[2]", "--fast-start"]
    terminal = Terminal([*command, "--data-dir", shop.data_dir], columns=110, pipe_stdout=True)
    try:
        yield terminal
    finally:
        terminal.close()


def rows_of(screen: list[str], what: str) -> list[list[str]]:
    """Return the rows below the header, which must be there once."""
    lines = [line.split() for line in screen if line.strip()]
    headers = [at for at, line in enumerate(lines) if line[: len(HEADER) + 1] == [what, *HEADER]]
    assert len(headers) == 1, "\n".join(screen)
    return lines[headers[0] + 2 :]


def test_pipelines_are_watched_on_a_terminal(shop: Shop) -> None:
    shop.file.write_text(shop.file.read_text() + "    isolated: true\n")
    assert shop.command("apply", "-f", str(shop.file)).returncode == 0
    made = shop.command(
        "pipeline", "create", "copy", "--from", "orders", "--sql", "SELECT key, value FROM orders", "--start",
        "--to-postgres", shop.dsn, "--table", "copied",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with on_terminal(shop, "pipeline", "run", "--conf", "spark.driver.memory=640m") as terminal:
        terminal.wait_for(
            lambda lines: (
                rows_per_minute_or_none(shop) == per_minute(range(COUNT))
                and any(line.split()[:2] == ["copy", "running"] and line.split()[-1] == "0" for line in lines)
                and any(line.split()[:2] == ["per-minute", "running"] and line.split()[-1] == "0" for line in lines)
            )
        )
        assert [row[:2] for row in rows_of(terminal.screen(), "pipeline")] == [
            ["copy", "running"],
            ["per-minute", "running"],
        ]
        terminal.type("\x03")
        assert terminal.end() == 0
        said = [line for line in terminal.screen() if line.strip()]
        assert said[-1] == "stopped; every pipeline goes on where its target stands"
        assert said[0].removeprefix("^C").startswith("pipelines run on local[2]; checkpoints in ")
        assert not [line for line in said if "WARN" in line or "Exception" in line or "log4j" in line], said
        assert terminal.piped == ""


def rows_per_minute_or_none(shop: Shop) -> list[tuple[int, str, int, int]] | None:
    import psycopg

    try:
        return rows_per_minute(shop.dsn)
    except psycopg.errors.UndefinedTable:
        return None


def test_tables_are_watched_on_a_terminal(shop: Shop, streamhouse: RunningStreamHouse) -> None:
    made = shop.command("table", "create", "--topic", "orders", "--format", "parquet", "--trigger", "1s")
    assert (made.returncode, made.stdout) == (0, "")
    with on_terminal(shop, "table", "run") as terminal:
        terminal.wait_for(
            lambda lines: any(line.split()[:2] == ["orders", "running"] and line.split()[-1] == "0" for line in lines)
        )
        assert [row[:2] for row in rows_of(terminal.screen(), "table")] == [["orders", "running"]]
        terminal.process.terminate()
        assert terminal.end() == 0
        assert [line for line in terminal.screen() if line][-1] == "stopped; every table goes on where it stands"
        assert terminal.piped == ""
