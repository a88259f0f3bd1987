"""Which clients can take part, and what is said where one cannot."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import time
from pathlib import Path

import pytest

from streamhouse.chaos.load import clients as clients_module
from streamhouse.chaos.load.clients import ClientProcess, find_clients
from streamhouse.chaos.load.spec import LoadSpec, Role
from streamhouse.core.errors import InvalidRequest, ServiceMissing


def test_without_a_python_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    hidden = ("confluent_kafka", "aiokafka")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else real(name))
    with pytest.raises(ServiceMissing, match=r"streamhouse\[chaos\]"):
        find_clients(None, None)


def test_one_client_of_two_is_enough_and_the_other_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "confluent_kafka" else real(name))
    monkeypatch.setattr(clients_module, "cache_directory", lambda: Path("/nowhere"))
    clients = find_clients(None, None)
    assert [client.name for client in clients.present] == ["aiokafka"]
    assert any(each.startswith("librdkafka: the package confluent-kafka is not") for each in clients.absent)
    assert any("--kafka-jars" in each for each in clients.absent)


def test_a_client_that_was_asked_for_and_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ServiceMissing, match="java cannot take part"):
        find_clients(["librdkafka", "java"], None)


def test_a_folder_of_jars_that_was_named_and_has_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--kafka-jars: no kafka-clients jar is in"):
        find_clients(None, tmp_path)


def test_java_alone_is_refused_and_the_hint_says_what_to_add() -> None:
    with pytest.raises(InvalidRequest, match="add librdkafka or aiokafka to --clients: one of them creates"):
        find_clients(["java"], None)


def test_without_java_the_hint_says_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ServiceMissing) as caught:
        find_clients(["librdkafka", "java"], None)
    assert caught.value.hint == "install a JDK and name the jars with --kafka-jars"


def test_a_client_that_does_not_exist_is_refused_and_those_that_do_are_named() -> None:
    with pytest.raises(InvalidRequest, match="no chaos client is named 'sarama'") as refused:
        find_clients(["librdkafka", "sarama"], None)
    assert refused.value.hint == "choose from librdkafka, aiokafka, java"


def test_a_client_that_was_not_chosen_is_absent_for_that_reason() -> None:
    clients = find_clients(["aiokafka"], None)
    assert [client.name for client in clients.present] == ["aiokafka"]
    assert clients.absent == ["librdkafka: not chosen by --clients", "java: not chosen by --clients"]
    assert clients.named("librdkafka") is None


def test_java_takes_part_with_the_newest_of_its_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    for version in ("3.9.0", "4.2.0"):
        (tmp_path / f"kafka-clients-{version}.jar").touch()
    clients = find_clients(["aiokafka", "java"], tmp_path)
    assert [client.name for client in clients.present] == ["aiokafka", "java"]
    assert clients.present[1].described == "java 4.2.0"
    assert clients.python.name == "aiokafka", "java neither creates topics nor reads the log at the end"


def test_a_java_without_its_compiler_cannot_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "javac" else f"/bin/{name}")
    assert "java: java is there without its compiler (a JDK has both)" in find_clients(None, None).absent


def test_a_process_that_hangs_writes_into_its_log_what_its_threads_do(tmp_path: Path) -> None:
    spec = LoadSpec(
        role=Role.TOPICS,
        client="librdkafka",
        run="run",
        bootstrap="127.0.0.1:1",
        topics={"orders": 1},
        history=str(tmp_path / "history"),
        process="librdkafka",
        seed=1,
        rate=1.0,
        settle_s=600.0,
    )
    process = ClientProcess(spec, find_clients(["librdkafka"], None).python, tmp_path)
    try:
        while not handles(process._child.pid, signal.SIGQUIT):
            assert process.ended() is None, process.last_words()
            time.sleep(0.05)
        while "create_topics" not in process.log_path.read_text():
            assert process.ended() is None, process.last_words()
            process.show_threads()
    finally:
        process.kill()


def handles(pid: int, wanted: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (wanted - 1) & 1)
