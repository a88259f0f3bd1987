"""The `streamhouse` command as a person or a script runs it: real processes, real exit codes, real streams."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from streamhouse import __version__
from streamhouse.cli import commands
from streamhouse.cli.main import COMMANDS, load
from streamhouse.core.settings import SCHEMA
from streamhouse.core.topic_config import TOPIC_CONFIGS

PROGRAM = [sys.executable, "-m", "streamhouse"]
LOADED = """
import sys
from streamhouse.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
"""The program, which at its end writes to stderr what it has imported."""


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMHOUSE_")}
    kept.pop("DISABLE_EMBEDDED_AGENT", None)
    return {**kept, "COLUMNS": "120", **more}


@pytest.fixture
def streamhouse(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs the command in an empty directory."""

    def run(*arguments: str, program: list[str] = PROGRAM, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *arguments],
            cwd=tmp_path,
            env=clean_environment(**environ),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


class TestBasics:
    def test_the_version(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"streamhouse {__version__}\n", "")

    def test_the_installed_script_is_the_same_program(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("--version", program=[str(Path(sys.executable).parent / "streamhouse")])
        assert (done.returncode, done.stdout) == (0, f"streamhouse {__version__}\n")

    @pytest.mark.parametrize("flag", ["--help", "-h"])
    def test_help_names_every_command(self, streamhouse, flag: str) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse(flag)
        assert done.returncode == 0
        for command in COMMANDS:
            assert f" {command} " in done.stdout

    @pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tabel"]])
    def test_what_calls_no_command_loads_nothing_heavy(self, streamhouse, arguments: list[str]) -> None:  # type: ignore[no-untyped-def]
        loaded = set(streamhouse("-c", LOADED, *arguments, program=[sys.executable]).stderr.splitlines()[-1].split())
        heavy = {"pyarrow", "asyncpg", "obstore", "sqlite3", "asyncio", "pyspark", "numpy", "pandas", "grpc"}
        assert loaded & heavy == set()
        ours = {name for name in loaded if name.startswith("streamhouse.")}
        assert "streamhouse.cli.main" in ours
        assert {name for name in ours if not name.startswith(("streamhouse.cli", "streamhouse.core"))} == set()
        assert {name for name in ours if name.startswith("streamhouse.cli.commands")} == set()

    @pytest.mark.parametrize("name", COMMANDS)
    def test_the_table_of_commands_has_the_help_that_each_command_has(self, name: str) -> None:
        command = load(name)
        assert command.name == name
        assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name].help

    def test_the_table_of_commands_has_them_all(self) -> None:
        files = {each.name for each in pkgutil.iter_modules(commands.__path__)}
        registered = set()
        for file in files:
            if hasattr(module := importlib.import_module(f"{commands.__name__}.{file}"), "register"):
                found = typer.Typer()
                module.register(found)
                registered |= {(name, file) for name in typer.main.get_group(found).commands}
        assert registered == {(name, listed.module) for name, listed in COMMANDS.items()}

    def test_a_mistyped_command_is_answered_with_the_closest_one(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        assert "Did you mean 'table'?" in streamhouse("tabel").stderr

    @pytest.mark.parametrize(
        ("typed", "offered"),
        [("t", "topic-configs"), ("table ", "vacuum"), ("config show --lease-", "--lease-ttl")],
    )
    def test_a_shell_completes_commands_and_what_they_take(self, streamhouse, typed: str, offered: str) -> None:  # type: ignore[no-untyped-def]
        asked = {"_STREAMHOUSE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"streamhouse {typed}"}
        done = streamhouse(program=[str(Path(sys.executable).parent / "streamhouse")], **asked)
        assert f'"{offered}":' in done.stdout

    def test_every_setting_is_a_flag_with_its_documentation(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        shown = streamhouse("config", "show", "--help").stdout
        for setting in SCHEMA:
            assert setting.flag in shown

    @pytest.mark.parametrize("arguments", [["nonsense"], ["config", "show", "--lease-tll", "5s"], ["config", "shwo"]])
    def test_wrong_usage_is_exit_code_2_and_nothing_on_stdout(self, streamhouse, arguments: list[str]) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse(*arguments)
        assert (done.returncode, done.stdout) == (2, "")

    def test_a_mistyped_flag_is_answered_with_the_closest_ones(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("config", "show", "--lease-tll", "5s")
        assert "--lease-tll" in done.stderr
        assert "--lease-ttl" in done.stderr


class TestConfigShow:
    def test_the_table_has_every_setting_and_its_source(self, streamhouse, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        (tmp_path / "streamhouse.toml").write_text('[lease]\nttl = "45s"\n')
        done = streamhouse("config", "show", "--agent-zone", "z1", STREAMHOUSE_AGENT_GROUP="g1")
        lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.splitlines()}
        assert done.returncode == 0
        assert done.stderr == ""
        assert set(lines) == {"SETTING", *(setting.key for setting in SCHEMA)}
        assert lines["lease.ttl"] == ["45s", f"file {tmp_path}/streamhouse.toml"]
        assert lines["agent.zone"] == ["z1", "flag --agent-zone"]
        assert lines["agent.group"] == ["g1", "environment STREAMHOUSE_AGENT_GROUP"]
        assert lines["lease.renew_interval"] == ["10s", "default"]

    def test_json(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("config", "show", "-o", "json", "--profile", "fast", "--no-embedded-agent")
        rows = {row["key"]: row for row in json.loads(done.stdout)}
        assert rows["embedded_agent"] == {"key": "embedded_agent", "value": False, "source": "flag --embedded-agent"}
        assert rows["lease.ttl"] == {"key": "lease.ttl", "value": "6s", "source": "profile fast"}
        assert rows["agent.id"]["value"] is None

    @pytest.mark.parametrize("output", ["table", "json"])
    def test_secrets_are_masked(self, streamhouse, output: str) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse(
            *("config", "show", "--output", output, "--store-access-key-id", "AKIA"),
            STREAMHOUSE_STORE_SECRET_ACCESS_KEY="hush-hush",
            STREAMHOUSE_METADATA_URL="postgresql://user:hush-hush@host/db",
        )
        assert done.returncode == 0
        assert "hush-hush" not in done.stdout + done.stderr
        assert "postgresql://user:********@host/db" in done.stdout

    def test_the_file_may_be_named_by_flag_or_variable(self, streamhouse, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        (tmp_path / "other.toml").write_text('[agent]\nzone = "other"\n')
        assert "other" in streamhouse("config", "show", "--config", "other.toml").stdout
        assert "other" in streamhouse("config", "show", STREAMHOUSE_CONFIG="other.toml").stdout

    def test_a_wrong_value_is_one_line_and_exit_code_2(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("config", "show", STREAMHOUSE_LEASE_TTL="soon")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(
            "error: lease.ttl from environment STREAMHOUSE_LEASE_TTL: 'soon' is not a duration"
        )
        assert done.stderr.count("\n") == 1

    def test_an_unknown_variable_is_answered_with_a_suggestion(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("config", "show", STREAMHOUSE_LEASE_TLL="5s")
        assert done.returncode == 2
        assert "did you mean STREAMHOUSE_LEASE_TTL?" in done.stderr

    def test_verbose_shows_the_traceback(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("--verbose", "config", "show", STREAMHOUSE_LEASE_TTL="soon")
        assert done.returncode == 2
        assert "Traceback" in done.stderr

    def test_disable_embedded_agent(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("config", "show", "-o", "json", DISABLE_EMBEDDED_AGENT="1")
        [row] = [row for row in json.loads(done.stdout) if row["key"] == "embedded_agent"]
        assert row["value"] is False
        assert row["source"] == "environment DISABLE_EMBEDDED_AGENT"


class TestConfigCheck:
    def test_all_is_well(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("config", "check", "--profile", "fast")
        assert done.returncode == 0
        assert done.stdout.startswith(f"ok: {len(SCHEMA)} settings, 1 chosen")
        assert "profile fast, durability wal" in done.stdout

    def test_every_problem_is_listed(self, streamhouse, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        (tmp_path / "streamhouse.toml").write_text('colour = "red"\n[lease]\nttl = "x"\n')
        done = streamhouse("config", "check", "--log-level", "loud")
        assert done.returncode == 2
        assert len(done.stdout.splitlines()) == 3

    def test_json(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        good = streamhouse("config", "check", "-o", "json")
        assert (good.returncode, json.loads(good.stdout)) == (0, {"ok": True, "problems": []})
        bad = streamhouse("config", "check", "-o", "json", "--log-level", "loud")
        assert bad.returncode == 2
        [problem] = json.loads(bad.stdout)["problems"]
        assert problem["error"] == "InvalidSetting"
        assert "log.level from flag --log-level" in problem["message"]


class TestTopicConfigs:
    def test_the_table_lists_them_all(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("topic-configs")
        assert done.returncode == 0
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["NAME", *TOPIC_CONFIGS]

    def test_json_says_which_are_inert(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        rows = {row["name"]: row for row in json.loads(streamhouse("topic-configs", "--output", "json").stdout)}
        assert rows["min.insync.replicas"]["inert"] is True
        assert (rows["max.message.bytes"]["inert"], rows["max.message.bytes"]["inert_reason"]) == (False, "")
        assert rows["retention.ms"] | {"documentation": ""} == {
            "name": "retention.ms",
            "type": "LONG",
            "default": "86400000",
            "valid": "at least -1",
            "inert": False,
            "inert_reason": "",
            "immutable": False,
            "synonyms": ["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
            "documentation": "",
        }


EXTENDED = """
import sys, time
from streamhouse.cli import main, conventions
from streamhouse.cli.output import progress
from streamhouse.core.errors import TopicNotFound

@main.app.command()
def wait():
    with progress("waiting"):
        conventions.note("ready")
        time.sleep(60)

@main.app.command()
def missing():
    raise TopicNotFound("there is no topic orders", hint="create it first")

@main.app.command()
def bug():
    return {}["hush"]

@main.app.command()
def pour():
    for _ in range(100_000):
        conventions.emit("x" * 100)

main.main()
"""
"""The real application with commands that misbehave, added the way a real command is."""


class TestManners:
    def test_a_known_error_is_one_line_and_its_exit_code(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("-c", EXTENDED, "missing", program=[sys.executable])
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == "error: there is no topic orders (create it first)\n"

    def test_a_bug_is_two_lines_without_verbose(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("-c", EXTENDED, "bug", program=[sys.executable])
        assert done.returncode == 1
        assert done.stderr.splitlines()[0] == "error: unexpected KeyError: 'hush'"
        assert "--verbose" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_bug_has_its_traceback_with_verbose(self, streamhouse) -> None:  # type: ignore[no-untyped-def]
        done = streamhouse("-c", EXTENDED, "-v", "bug", program=[sys.executable])
        assert done.returncode == 1
        assert "Traceback" in done.stderr

    def test_ctrl_c_is_one_line_and_130(self, tmp_path: Path) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", EXTENDED, "wait"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background job ignores it, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, "", "interrupted\n")

    @pytest.mark.parametrize(
        "arguments",
        [["-m", "streamhouse", "topic-configs"], ["-m", "streamhouse", "--version"], ["-c", EXTENDED, "pour"]],
        ids=["one write", "before any command", "many writes"],
    )
    def test_a_closed_pipe_is_silence(self, tmp_path: Path, arguments: list[str]) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, "")

    def test_a_terminal_gets_a_table_that_fits_it(self, tmp_path: Path) -> None:
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*PROGRAM, "config", "show"],
            cwd=tmp_path,
            env=clean_environment(COLUMNS="70", TERM="xterm"),
            stdout=theirs,
        ) as process:
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # a pty ends with EIO once the other side is gone
                while chunk := os.read(ours, 65536):
                    shown += chunk
        os.close(ours)
        assert process.returncode == 0
        lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
        assert max(map(len, lines)) <= 70
        assert lines[2].strip().startswith("───")
