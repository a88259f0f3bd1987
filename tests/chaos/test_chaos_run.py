"""A chaos run checks what it is told before it starts anything, can be interrupted at any time, and cleans up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from chaos_histories import Tale

from streamhouse.chaos import run as run_module
from streamhouse.chaos.fleet.agents import AgentProcess, KnownProcess
from streamhouse.chaos.fleet.fleet import Fleet
from streamhouse.chaos.fleet.nemesis import Nemesis
from streamhouse.chaos.fleet.plan import FaultSchedule
from streamhouse.chaos.load import aio, librdkafka
from streamhouse.chaos.load.clients import Clients, find_clients
from streamhouse.chaos.load.process import Orders
from streamhouse.chaos.load.spec import NO_BROKER, LoadSpec, Role
from streamhouse.chaos.options import FaultKind, Options, parse_faults
from streamhouse.chaos.report.document import Story, compose
from streamhouse.chaos.report.page import as_page
from streamhouse.chaos.report.text import as_text
from streamhouse.chaos.run import Interrupted, Run
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidRequest, ServiceFailed, ServiceMissing
from streamhouse.core.randomness import SeededRandomness
from streamhouse.testing.services.ports import free_ports


def options(results: Path = Path("results"), **more: Any) -> Options:
    common: dict[str, Any] = {
        "minutes": 1,
        "agents": None,
        "seed": 4,
        "results": results,
        "fault_every_s": 5,
        "faults": (FaultKind.PAUSE,),
        "floor": 0.5,
        "rate": 10,
        "unavailable_limit_s": 60,
        "settle_s": 5,
        "keep": False,
    }
    return Options(**{**common, **more})


class TestOptions:
    def test_good_options_pass(self) -> None:
        options().check()
        options(agents=16, settings={"lease.ttl": "10s"}).check()
        options(bootstrap="127.0.0.1:9092, [::1]:9093").check()

    @pytest.mark.parametrize("value", [nan, inf, -inf, 0, -1])
    @pytest.mark.parametrize("name", ["minutes", "fault_every_s", "rate", "settle_s", "unavailable_limit_s"])
    def test_a_number_that_is_not_above_0_or_not_finite_is_refused(self, name: str, value: float) -> None:
        with pytest.raises(InvalidRequest, match="above 0"):
            options(**{name: value}).check()

    @pytest.mark.parametrize("address", ["foo", ":9092", "host:", "host:x", "host:0", "host:65536", "", "a:1,b"])
    def test_an_address_that_is_none_is_refused(self, address: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            options(bootstrap=address).check()
        assert caught.value.message == f"--bootstrap takes HOST:PORT, not {address!r}"

    @pytest.mark.parametrize("pid", [0, -1, 2**31 - 1])
    def test_a_process_that_does_not_exist_is_refused(self, pid: int) -> None:
        with pytest.raises(InvalidRequest) as caught:
            options(bootstrap="127.0.0.1:1", pids=(pid,)).check()
        assert caught.value.message == f"--pids: there is no process {pid}"

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"foo": "bar"}, "--set foo: there is no such setting"),
            ({"lease.ttl": "soon"}, "--set lease.ttl: 'soon' is not a duration"),
        ],
    )
    def test_a_wrong_setting_is_refused(self, settings: dict[str, str], said: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            options(settings=settings).check()
        assert caught.value.message == said

    def test_settings_that_contradict_each_other_are_refused_and_named_as_they_were_given(self) -> None:
        with pytest.raises(InvalidRequest, match=r"^--set: .*lease\.ttl is 2s \(--set lease\.ttl\)"):
            options(settings={"lease.ttl": "2s"}).check()

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"pids": (1,)}, "--pids needs --bootstrap: the run knows the processes that it starts itself"),
            (
                {"settings": {"lease.ttl": "10s"}, "bootstrap": "a:1"},
                "--set has no effect with --bootstrap: it configures agents that the run starts",
            ),
            (
                {"agents": 3, "bootstrap": "a:1"},
                "--agents has no effect with --bootstrap: the run starts no agent",
            ),
        ],
    )
    def test_options_that_do_not_go_together_are_refused(self, more: dict[str, Any], said: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            options(**more).check()
        assert caught.value.message == said

    def test_empty_parts_of_a_list_of_faults_are_ignored(self) -> None:
        assert parse_faults("kill,, s3,") == (FaultKind.KILL, FaultKind.S3)
        assert parse_faults("all,") == tuple(FaultKind)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("disk,all", "all and none stand alone"),
            ("none,kill", "all and none stand alone"),
            (" , ", "--faults names no fault"),
            ("", "--faults names no fault"),
        ],
    )
    def test_a_list_of_faults_that_makes_no_sense_is_refused(self, text: str, said: str) -> None:
        with pytest.raises(InvalidRequest, match=said):
            parse_faults(text)


class TestClients:
    def test_a_folder_of_jars_that_was_named_and_has_none_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="--kafka-jars: no kafka-clients jar is in"):
            find_clients(None, tmp_path)

    def test_java_alone_is_refused_and_the_hint_says_what_to_add(self) -> None:
        with pytest.raises(InvalidRequest, match="add librdkafka or aiokafka to --clients: one of them creates"):
            find_clients(["java"], None)

    def test_without_java_the_hint_says_to_install_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shutil.which", lambda name: None)
        with pytest.raises(ServiceMissing) as caught:
            find_clients(["librdkafka", "java"], None)
        assert caught.value.hint == "install a JDK and name the jars with --kafka-jars"


def a_run(
    stack: ExitStack, results: Path, *, client: str = "librdkafka", interrupted: Interrupted | None = None
) -> Run:
    found = Clients(present=find_clients([client], None).present, absent=[])
    return Run(options(results), found, interrupted or Interrupted(), lambda text: None, stack)


def a_document(tmp_path: Path, **more: Any) -> dict[str, Any]:
    tale = more.pop("tale", None) or Tale(tmp_path / "history-of-a-test")
    common: dict[str, Any] = {
        "run": "r",
        "version": "0",
        "target": "2 agents of its own",
        "versions": {},
        "begin_ms": 1000,
        "end_ms": 61_000,
        "interrupted": False,
        "clients": Clients(present=[], absent=[]),
        "happened": [],
        "left_out": Counter(),
        "skipped": {},
        "good_share": 0.9,
        "problems": [],
    }
    return compose(options(tmp_path), Story(**{**common, **more}), tale.verdict())


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
            run._write(a_document(tmp_path, problems=[] if passed else ["one"]))
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


@pytest.mark.timeout(60)
def test_a_known_process_that_ends_is_told_once_and_is_not_time_without_agents() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        plan = FaultSchedule(SeededRandomness(1), kinds=[FaultKind.PAUSE], agents=1, every_s=5, lease_s=6)
        agent = KnownProcess(child.pid)
        nemesis = Nemesis(plan, [agent], s3=None, database=None, floor=0.5, wall_ms=SystemClock().wall_ms)
        assert agent.alive()
        child.kill()
        child.wait()
        nemesis.watch(0.3, stopped=lambda: False, tick=lambda: None)
        nemesis.heal()
        nemesis.finish()
    finally:
        child.kill()
        child.communicate()
    assert nemesis.without_agents == []
    assert nemesis.good_share == 1.0
    (told,) = nemesis.happened
    assert (told.kind, told.target) == ("exit", f"pid-{child.pid}")


class TestHeadline:
    def anomaly(self, tmp_path: Path) -> Tale:
        tale = Tale(tmp_path / "history-with-a-loss")
        tale.sent(1)
        tale.acknowledged(0, 0)
        tale.log()
        return tale

    def test_a_read_that_was_cut_short_is_no_verdict(self, tmp_path: Path) -> None:
        document = a_document(tmp_path, interrupted=True, judged=False, killed=["java-producers"])
        assert as_text(document).startswith("chaos: interrupted before the last read; not judged\n")
        assert "interrupted before the last read; not judged" in as_page(document)
        assert document["passed"] is False

    def test_a_verdict_with_a_killed_client_says_first_that_it_is_not_reliable(self, tmp_path: Path) -> None:
        doubt = "chaos: the verdict is not reliable: java-producers killed, history incomplete; "
        document = a_document(tmp_path, killed=["java-producers"], problems=["java-producers was killed"])
        assert as_text(document).startswith(f"{doubt}no anomaly\n")
        assert document["passed"] is False
        document = a_document(tmp_path, killed=["java-producers"], tale=self.anomaly(tmp_path))
        assert as_text(document).startswith(f"{doubt}1 anomaly (lost 1)\n")

    def test_an_anomaly_stays_one_after_an_interruption(self, tmp_path: Path) -> None:
        document = a_document(tmp_path, interrupted=True, judged=False, tale=self.anomaly(tmp_path))
        assert as_text(document).startswith("chaos: 1 anomaly (lost 1)\n")
