"""`streamhouse chaos` as a person runs it: real processes, real exit codes, a report that can be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chaos_liar import LiarProxy

from streamhouse.testing.services.ports import free_ports

PROGRAM = [sys.executable, "-m", "streamhouse"]
WAIT_S = 120.0


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("STREAMHOUSE_")}


def chaos(*arguments: str, directory: Path, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "chaos", *arguments],
        cwd=directory,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextmanager
def dev_node(directory: Path, *, port: int, advertised: int) -> Iterator[int]:
    """`streamhouse dev` on this port, which tells clients another one; its process id."""
    log = directory / "dev.log"
    with log.open("wb") as out:
        node = subprocess.Popen(
            [
                *PROGRAM,
                "dev",
                *("--data-dir", str(directory / "node")),
                *("--admin-listen", "127.0.0.1:0"),
                *("--kafka-listen", f"127.0.0.1:{port}", "--kafka-advertised", f"127.0.0.1:{advertised}"),
            ],
            cwd=directory,
            env=clean_environment(),
            stdout=out,
            stderr=out,
        )
    try:
        wait_for("dev is ready", lambda: b"\nready; " in log.read_bytes())
        yield node.pid
    finally:
        node.kill()
        node.wait()


def wait_for(what: str, check: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.1)


def report(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "results" / "report.json").read_text())
    return document


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_minutes_of_chaos_lose_duplicate_and_reorder_nothing(tmp_path: Path) -> None:
    """The limits on time are far beyond what it takes: the machine may be busy."""
    limits = ("--unavailable-limit", "600", "--settle", "300")
    done = chaos(
        *("--minutes", "2", "--seed", "11", "--fault-every", "4", "--results", "results", "--output", "json", *limits),
        directory=tmp_path,
        timeout_s=1400,
    )
    assert done.returncode == 0, (tmp_path / "results" / "report.txt").read_text() + done.stderr
    told = json.loads(done.stdout)
    assert set(told["anomalies"].values()) == {0}
    assert told == report(tmp_path)
    faults = told["faults"]
    assert faults["kill"] + faults["pause"] + faults["stop"] >= 3, faults
    assert faults["s3"] + faults["database"] >= 1, faults
    assert told["acknowledged"]["acks=all"] > 1000
    assert {name.split()[0] for name in told["clients"]} == set(told["producers"]) == {"aiokafka", "java", "librdkafka"}
    assert {name.rpartition("-")[2] for name in told["groups"]} == {"classic", "consumer"}
    assert all(group["records"] > 0 and group["behind"] == 0 for group in told["groups"].values())
    assert not (tmp_path / "results" / "logs").exists(), "logs stay only when something was wrong"
    assert "<svg" in (tmp_path / "results" / "report.html").read_text()


@pytest.mark.timeout(300)
def test_a_broker_that_swallows_acknowledged_records_is_found_out(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with LiarProxy() as liar:
        liar.upstream_port = port
        with dev_node(tmp_path, port=port, advertised=liar.port):
            done = chaos(
                *("--bootstrap", f"127.0.0.1:{liar.port}", "--minutes", "0.1", "--clients", "librdkafka"),
                *("--results", "results", "--settle", "60"),
                directory=tmp_path,
                timeout_s=250,
            )
        assert liar.lies > 0
    assert done.returncode == 9, done.stdout + done.stderr
    assert report(tmp_path)["anomalies"]["lost"] > 0
    assert "anomalies (lost " in done.stdout
    assert "acknowledged with acks=all, and not in the log" in done.stdout
    history = tmp_path / "results" / "history"
    assert any(history.rglob("*.produce")), "the evidence of an anomaly is kept"


@contextmanager
def started(*arguments: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A long run, with its results in ``results``."""
    run = subprocess.Popen(
        [*PROGRAM, "chaos", *arguments, "--results", "results", "--minutes", "60", "--settle", "60"],
        cwd=directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def wait_for_records(directory: Path) -> None:
    wait_for("some records are there", lambda: any((directory / "results").rglob("*.produce")))


@pytest.mark.timeout(300)
def test_ctrl_c_ends_a_run_in_order_and_still_reports(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with (
        dev_node(tmp_path, port=port, advertised=port),
        started("--bootstrap", f"127.0.0.1:{port}", "--clients", "librdkafka", directory=tmp_path) as run,
    ):
        wait_for_records(tmp_path)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=250)
    assert run.returncode == 130, out + err
    assert err.startswith("seed "), err
    assert "; report in results\n" in err
    assert "Traceback" not in err
    told = report(tmp_path)
    assert (told["interrupted"], told["passed"]) == (True, True)
    assert out.startswith("chaos: no anomaly")
    assert told["faults_skipped"]["kill"] == "the run did not start this fleet"
    assert not (tmp_path / "results" / "history").exists(), "nothing but the report is left when all is well"
    assert not (tmp_path / "results" / "logs").exists()


@pytest.mark.timeout(300)
def test_a_second_signal_before_the_last_read_ends_the_run_without_a_verdict(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with (
        dev_node(tmp_path, port=port, advertised=port),
        started("--bootstrap", f"127.0.0.1:{port}", "--clients", "librdkafka", directory=tmp_path) as run,
    ):
        wait_for_records(tmp_path)
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGTERM)  # two different signals: the kernel would join two equal ones
        out, err = run.communicate(timeout=250)
    assert run.returncode == 130, out + err
    assert out.startswith("chaos: interrupted before the last read; not judged\n")
    told = report(tmp_path)
    assert (told["interrupted"], told["judged"], told["passed"]) == (True, False, False)
    assert set(told["anomalies"].values()) == {0}


@pytest.mark.timeout(300)
def test_a_killed_client_makes_the_verdict_unreliable_and_its_records_are_not_foreign(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with (
        dev_node(tmp_path, port=port, advertised=port),
        started("--bootstrap", f"127.0.0.1:{port}", "--clients", "librdkafka", directory=tmp_path) as run,
    ):
        wait_for_records(tmp_path)
        os.kill(child_with(run.pid, "librdkafka-producers.json"), signal.SIGKILL)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=250)
    assert out.startswith("chaos: the verdict is not reliable: librdkafka-producers killed"), out + err
    told = report(tmp_path)
    assert told["clients_killed"] == ["librdkafka-producers"]
    assert (told["anomalies"]["foreign record"], told["anomalies"]["unstable read"]) == (0, 0), out
    assert told["passed"] is False


def child_with(parent: int, word: str) -> int:
    """The process id of a child that has this word on its command line."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (found,) = [pid for pid in children if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(found)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_waits_for_a_broker_can_be_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    (port,) = free_ports(1)
    with started("--bootstrap", f"127.0.0.1:{port}", "--clients", "librdkafka", directory=tmp_path) as run:
        log = tmp_path / "results" / "logs" / "librdkafka-topics.log"
        wait_for("it asks for the topics", log.exists)
        run.send_signal(number)
        out, err = run.communicate(timeout=150)
    assert (run.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted"


@pytest.mark.timeout(300)
def test_a_run_can_be_interrupted_while_its_agents_start(tmp_path: Path) -> None:
    with started("--agents", "1", "--faults", "none", directory=tmp_path) as run:
        wait_for("it starts", (tmp_path / "results" / "logs").exists)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=250)
    assert (run.returncode, out) == (130, ""), err
    assert not (tmp_path / "results" / "report.json").exists()
    assert not list((tmp_path / "results" / "logs").glob("*-topics.log")), "no client was started"


@pytest.mark.timeout(300)
def test_a_running_fleet_is_paused_by_its_process_ids_and_goes_on_afterwards(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with dev_node(tmp_path, port=port, advertised=port) as pid:
        done = chaos(
            *("--bootstrap", f"127.0.0.1:{port}", "--pids", str(pid), "--minutes", "0.2", "--fault-every", "2"),
            *("--clients", "aiokafka", "--results", "results", "--settle", "120", "--unavailable-limit", "200"),
            directory=tmp_path,
            timeout_s=250,
        )
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert done.returncode == 0, done.stdout + done.stderr
    told = report(tmp_path)
    assert told["faults"]["pause"] > 0
    assert told["faults_skipped"]["kill"] == "the run could not start these processes again"
    assert told["clients_absent"][0] == "librdkafka: not chosen by --clients"
    assert state not in "Tt", "the process is not left stopped"


def test_a_folder_of_another_program_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "results" / "logs").mkdir(parents=True)
    (tmp_path / "results" / "logs" / "mine").touch()
    done = chaos("--results", "results", "--bootstrap", "127.0.0.1:1", directory=tmp_path)
    assert done.returncode == 2
    assert "holds a folder of another program" in done.stderr
    assert (tmp_path / "results" / "logs" / "mine").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--minutes", "0"), "--minutes must be above 0"),
        (("--agents", "0"), "--agents must be 1 to 16"),
        (("--faults", "flood"), "no fault is named 'flood'"),
        (("--clients", "kafkajs"), "no chaos client is named 'kafkajs'"),
        (("--pids", "1"), "--pids needs --bootstrap"),
        (("--pids", "one", "--bootstrap", "127.0.0.1:1"), "--pids takes process ids"),
        (("--pids", "2147483647", "--bootstrap", "127.0.0.1:1"), "--pids: there is no process 2147483647"),
        (("--set", "lease.ttl"), "--set takes KEY=VALUE"),
        (("--set", "foo=bar"), "--set foo: there is no such setting"),
        (("--rate", "nan"), "--rate must be a number above 0"),
        (("--bootstrap", "foo"), "--bootstrap takes HOST:PORT, not 'foo'"),
        (("--agents", "3", "--bootstrap", "127.0.0.1:1"), "--agents has no effect with --bootstrap"),
        (("--kafka-jars", "/nope"), "--kafka-jars: no kafka-clients jar is in /nope"),
        (("--results", "/proc/x"), "the folder of results /proc/x cannot be made: No such file or directory (choose"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = chaos(*arguments, directory=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: "), "nothing is announced before everything is checked"
