"""A chaos run checks what it is told before it starts anything, can be interrupted at any time, and cleans up."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos_histories import chaos_options as options
from report_ground import bare_report

from streamhouse.chaos import run as run_module
from streamhouse.chaos.fleet.agents import AgentProcess
from streamhouse.chaos.fleet.fleet import Fleet
from streamhouse.chaos.load import aio, librdkafka
from streamhouse.chaos.load.clients import Clients, find_clients
from streamhouse.chaos.load.process import Orders
from streamhouse.chaos.load.spec import NO_BROKER, LoadSpec, Role
from streamhouse.chaos.run import Interrupted, Run
from streamhouse.core.errors import InvalidRequest, ServiceFailed
from streamhouse.testing.services.ports import free_ports


def a_run(
    stack: ExitStack, results: Path, *, client: str = "librdkafka", interrupted: Interrupted | None = None
) -> Run:
    found = Clients(present=find_clients([client], None).present, absent=[])
    return Run(options(results), found, interrupted or Interrupted(), lambda text: None, stack)


class TestResults:
    @pytest.mark.parametrize("name", ["file", "file/below", "/proc/x"])
    def test_a_folder_that_cannot_be_made_is_an_error_of_the_option(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        with ExitStack() as stack, pytest.raises(InvalidRequest) as caught:
            a_run(stack, tmp_path / name)
        assert caught.value.message.startswith(f"the folder of results {tmp_path / name} cannot be made: ")
        assert caught.value.hint == "choose another one with --results"

    @pytest.mark.parametrize("passed", [True, False])
    def test_logs_stay_only_when_something_was_wrong(self, tmp_path: Path, passed: bool) -> None:
        results = tmp_path / "results"
        with ExitStack() as stack:
            run = a_run(stack, results)
            # An agent's log is copied when the fleet ends, which is after the report.
            stack.callback((results / "logs" / "agent-1.log").write_text, "the last line")
            run._write(bare_report(tmp_path, problems=[] if passed else ["one"]))
        assert (results / "logs" / "agent-1.log").exists() is not passed
        assert (results / "history").exists() is not passed
        assert (results / "report.html").exists()

    def test_nothing_is_announced_before_everything_is_checked(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        announced: list[str] = []
        for wrong in (
            options(tmp_path / "file", bootstrap="127.0.0.1:1"),
            options(tmp_path / "results", clients=["java"]),
            options(tmp_path / "results", settings={"foo": "bar"}),
        ):
            with pytest.raises(InvalidRequest):
                run_module.run_chaos(wrong, say=lambda text: None, begins=lambda: announced.append("seed"))
        assert announced == []


class TestNoBroker:
    def spec(self, tmp_path: Path, client: str) -> LoadSpec:
        (port,) = free_ports(1)
        return LoadSpec(
            role=Role.TOPICS,
            client=client,
            run="r",
            bootstrap=f"127.0.0.1:{port}",
            topics={"t": 1},
            history=str(tmp_path),
            process=client,
            seed=1,
            rate=1.0,
            settle_s=0.2,
        )

    def test_both_clients_tell_a_missing_broker_from_another_failure(self, tmp_path: Path) -> None:
        assert librdkafka.create_topics(self.spec(tmp_path, "librdkafka"), Orders()) == NO_BROKER
        assert asyncio.run(aio._create_topics(self.spec(tmp_path, "aiokafka"), Orders())) == NO_BROKER

    @pytest.mark.timeout(120)
    def test_the_error_names_the_address(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run_module, "_TOPICS_S", 1.0)
        (port,) = free_ports(1)
        with ExitStack() as stack, pytest.raises(ServiceFailed) as caught:
            a_run(stack, tmp_path / "results")._create_topics(f"127.0.0.1:{port}")
        assert caught.value.message == f"no Kafka broker answers at 127.0.0.1:{port} (waited 1 s)"
        assert caught.value.hint == "check --bootstrap, and that the fleet runs"

    @pytest.mark.timeout(60)
    def test_an_interruption_ends_the_wait(self, tmp_path: Path) -> None:
        (port,) = free_ports(1)
        interrupted = Interrupted()
        interrupted.count = 1
        with ExitStack() as stack, pytest.raises(KeyboardInterrupt):
            a_run(stack, tmp_path / "results", interrupted=interrupted)._create_topics(f"127.0.0.1:{port}")


def test_an_agent_that_ends_while_it_starts_is_an_error_that_says_where_its_log_is(tmp_path: Path) -> None:
    fleet = Fleet(options(), tmp_path, logs=Path("results/logs"), interrupted=lambda: False)
    agent = AgentProcess("agent-1", port=1, home=tmp_path, settings={}, disk=None, clock=None)
    agent.log_path.write_text("error: no\n")
    fleet.agents.append(agent)
    with pytest.raises(ServiceFailed) as caught:
        fleet.wait_ready(lambda: False)
    assert "agent-1 ended while it started; the end of its log:\nerror: no\n" in caught.value.message
    assert caught.value.hint == "the whole log is in results/logs/agent-1.log"
