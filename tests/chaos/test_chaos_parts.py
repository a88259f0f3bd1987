"""The small parts of a chaos run: records, plan, floor, clients, proxy, disk, report."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_histories import Tale
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.chaos.fleet.clocks import OwnClock
from streamhouse.chaos.fleet.disk import SmallDisk, why_no_disks
from streamhouse.chaos.fleet.nemesis import Happened
from streamhouse.chaos.fleet.plan import FaultSchedule
from streamhouse.chaos.fleet.proxy import Proxy, ProxyMode
from streamhouse.chaos.history import History, lines, partitions
from streamhouse.chaos.load import clients as clients_module
from streamhouse.chaos.load.clients import Clients, LoadClient, find_clients
from streamhouse.chaos.load.shape import MAX_OUTSTANDING, Life
from streamhouse.chaos.load.spec import GroupSpec, LoadSpec, Role, load_spec
from streamhouse.chaos.options import FaultKind, Options, parse_faults
from streamhouse.chaos.records import Damaged, Written, decode, encode
from streamhouse.chaos.report.document import Story, compose
from streamhouse.chaos.report.page import as_page
from streamhouse.chaos.report.text import as_text
from streamhouse.core.errors import InvalidRequest, ServiceMissing
from streamhouse.core.randomness import SeededRandomness

WRITTEN = Written(run="r", producer="p-1", number=7, topic="t", partition=3)


class TestRecords:
    @settings(deadline=None)  # the machine may be busy
    @given(number=st.integers(0, 2**39), size=st.integers(0, 300_000))
    def test_a_record_reads_back(self, number: int, size: int) -> None:
        written = Written(run="r", producer="p-1", number=number, topic="t", partition=3)
        assert decode(encode(written, size)) == written

    @settings(deadline=None)
    @given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
    def test_a_flipped_byte_is_seen(self, at: int, flip: int) -> None:
        value = bytearray(encode(WRITTEN, 400))
        value[at % len(value)] ^= flip
        with pytest.raises(Damaged):
            decode(bytes(value))

    @pytest.mark.parametrize("value", [None, b"", b"\n", b"a b c d e f g\n", encode(WRITTEN, 9)[:-1], b"\xff" * 1000])
    def test_other_bytes_are_damaged(self, value: bytes | None) -> None:
        with pytest.raises(Damaged):
            decode(value)


class TestHistory:
    def test_what_is_written_is_what_the_checker_reads(self, tmp_path: Path) -> None:
        times = iter(range(100, 200))
        with History(tmp_path, "one", wall_ms=lambda: next(times)) as history:
            history.producer("p-1", "librdkafka", once=True, ordered=True, acks="all")
            history.sent("t", 3, "p-1", 7, 1)
            history.acknowledged("t", 3, "p-1", 7, 0)
            history.failed("t", 3, "p-1", 8, "timed out twice")
            history.taken("t", 3, "g", "m", 1)
            history.delivered("t", 3, "g", "m", 1, 0, encode(WRITTEN, 5))
            history.delivered("t", 3, "g", "m", 1, 1, b"noise")
            history.read_finally("r", "t", 3, 0, encode(WRITTEN, 5))
            history.read_finally("r", "t", 4, 0, encode(WRITTEN, 5))
            history.read_finally("r", "t", 3, 1, b"noise")
            history.read_to_the_end("t", 3, 2)
        part = tmp_path / "parts" / "t" / "3"
        assert partitions(tmp_path) == [("t", 3), ("t", 4)]
        assert [words[0] for words in lines(part / "one.produce")] == ["S", "A", "F"]
        assert [words[3:] for words in lines(part / "one.produce")] == [
            ["7", "1"],
            ["7", "0"],
            ["8", "timed_out_twice"],
        ]
        assert [words[5:] for words in lines(part / "one.group") if words[0] == "R"] == [
            ["0", "p-1", "7"],
            ["1", "!", "0"],
        ]
        assert [words[0] for words in lines(part / "final")] == ["V", "X", "E"]
        assert [words[:2] for words in lines(part.with_name("4") / "final")] == [["X", "0"]]


class TestPlan:
    def plan(self, seed: int, kinds: tuple[FaultKind, ...] = tuple(FaultKind)) -> FaultSchedule:
        return FaultSchedule(SeededRandomness(seed), kinds=kinds, agents=3, every_s=5, lease_s=6)

    def test_one_seed_gives_one_plan(self) -> None:
        one, other = self.plan(5), self.plan(5)
        first = [(one.pause_s(), one.next()) for _ in range(100)]
        assert first == [(other.pause_s(), other.next()) for _ in range(100)]
        assert first != [(another.pause_s(), another.next()) for another in [self.plan(6)] for _ in range(100)]

    def test_every_kind_comes_and_only_those_that_were_asked_for(self) -> None:
        plan = self.plan(1)
        faults = [plan.next() for _ in range(1000)]
        assert {fault.kind for fault in faults} == set(FaultKind)
        assert {fault.agent for fault in faults if fault.hits_agent} == {0, 1, 2}
        assert {fault.mode for fault in faults if not fault.hits_agent} == {
            ProxyMode.CUT,
            ProxyMode.REFUSE,
            ProxyMode.HOLD,
        }
        few = self.plan(1, (FaultKind.PAUSE, FaultKind.S3))
        assert {few.next().kind for _ in range(200)} == {FaultKind.PAUSE, FaultKind.S3}

    def test_pauses_end_before_the_lease_and_beyond_it(self) -> None:
        plan = self.plan(2, (FaultKind.PAUSE,))
        lasts = [plan.next().lasts_s for _ in range(200)]
        assert min(lasts) < 4.2 < 6.6 < max(lasts)

    def test_a_life_begins_with_enough_batches_for_five_in_flight(self) -> None:
        randomness = SeededRandomness(3)
        for _ in range(200):
            life = Life(randomness, [("t", 0), ("t", 1)])
            burst = life.burst(0)
            assert burst.count <= MAX_OUTSTANDING
            if burst.padding_bytes < 1000 and life.batch_records < 20:
                assert burst.count >= 5 * life.batch_records


class TestOptions:
    def test_faults_by_name(self) -> None:
        assert parse_faults("kill, s3,kill") == (FaultKind.KILL, FaultKind.S3)
        assert parse_faults("all") == tuple(FaultKind)
        assert parse_faults("none") == ()
        with pytest.raises(InvalidRequest, match="flood"):
            parse_faults("kill,flood")


class TestClients:
    def test_without_a_python_client_the_error_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.util.find_spec
        hidden = ("confluent_kafka", "aiokafka")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else real(name))
        with pytest.raises(ServiceMissing, match=r"streamhouse\[chaos\]"):
            find_clients(None, None)

    def test_one_client_of_two_is_enough_and_the_other_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "confluent_kafka" else real(name))
        monkeypatch.setattr(clients_module, "cache_directory", lambda: Path("/nowhere"))
        clients = find_clients(None, None)
        assert [client.name for client in clients.present] == ["aiokafka"]
        assert any(each.startswith("librdkafka: the package confluent-kafka is not") for each in clients.absent)
        assert any("--kafka-jars" in each for each in clients.absent)

    def test_a_client_that_was_asked_for_and_is_missing_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: None)
        with pytest.raises(ServiceMissing, match="java cannot take part"):
            find_clients(["librdkafka", "java"], None)

    def test_a_spec_reads_back(self, tmp_path: Path) -> None:
        spec = LoadSpec(
            role=Role.GROUPS,
            client="aiokafka",
            run="r",
            bootstrap="127.0.0.1:1",
            topics={"t": 2, "u": 1},
            history="/h",
            process="aiokafka",
            seed=3,
            rate=10.0,
            settle_s=5.0,
            groups=(GroupSpec(name="g", protocol="classic", members=2),),
        )
        spec.save(tmp_path / "spec.json")
        assert load_spec(tmp_path / "spec.json") == spec
        assert spec.places == [("t", 0), ("t", 1), ("u", 0)]
        spec.save_for_java(tmp_path / "spec.properties")
        assert "topics=t:2,u:1\ngroups=g:classic:2\n" in (tmp_path / "spec.properties").read_text()


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy before a server that accepts and says hello."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = Proxy(server.getsockname()[1])
        peers: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peers.append(server.accept()[0])
                    peers[-1].sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.stop()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            for peer in peers:
                peer.close()


class TestProxy:
    def connect(self, proxy: Proxy) -> socket.socket:
        return socket.create_connection(("127.0.0.1", proxy.port), timeout=30)

    def hears(self, client: socket.socket, timeout_s: float = 30) -> bytes | None:
        """None: silence."""
        client.settimeout(timeout_s)
        try:
            return client.recv(100)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def test_it_passes_then_refuses_then_passes_again(self, echo: Proxy) -> None:
        with self.connect(echo) as client:
            assert self.hears(client) == b"hello"
            echo.set_mode(ProxyMode.REFUSE)
            assert self.hears(client) == b"", "what was open is closed"
        with self.connect(echo) as client:
            assert self.hears(client) == b""
        echo.set_mode(ProxyMode.PASS)
        with self.connect(echo) as client:
            assert self.hears(client) == b"hello"

    def test_it_holds_what_comes_until_it_passes_again(self, echo: Proxy) -> None:
        echo.set_mode(ProxyMode.HOLD)
        with self.connect(echo) as client:
            assert self.hears(client, 0.3) is None
            echo.set_mode(ProxyMode.PASS)
            assert self.hears(client) == b"hello"

    def test_a_cut_closes_what_is_open_and_lets_new_connections_pass(self, echo: Proxy) -> None:
        with self.connect(echo) as client:
            assert self.hears(client) == b"hello"
            echo.set_mode(ProxyMode.CUT)
            assert self.hears(client) == b""
        with self.connect(echo) as client:
            assert self.hears(client) == b"hello"


def test_a_small_disk_is_filled_and_emptied_or_the_reason_why_not_is_told(tmp_path: Path) -> None:
    reason = why_no_disks(tmp_path)
    if reason is not None:
        assert "mount" in reason
        return
    home = tmp_path / "disk"
    home.mkdir()
    disk = SmallDisk(home)
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"), (home / "one").open("wb", buffering=0) as file:
            file.write(bytes(4096))
        disk.empty()
        (home / "one").write_bytes(bytes(4096))
    finally:
        disk.unmount()
    assert not os.path.ismount(home)


def test_a_clock_of_its_own_is_a_file_that_libfaketime_reads(tmp_path: Path) -> None:
    clock = OwnClock(Path("/lib/libfaketime.so.1"), tmp_path / "clock")
    assert (tmp_path / "clock").read_text() == "+0\n"
    clock.set(-300)
    assert (tmp_path / "clock").read_text() == "-300\n"
    assert clock.environment()["FAKETIME_TIMESTAMP_FILE"] == str(tmp_path / "clock")


class TestReport:
    def document(self, tale: Tale, tmp_path: Path) -> dict[str, object]:
        options = Options(
            minutes=1,
            agents=2,
            seed=4,
            results=tmp_path,
            fault_every_s=5,
            faults=tuple(FaultKind),
            floor=0.5,
            rate=10,
            unavailable_limit_s=60,
            settle_s=5,
            keep=False,
        )
        story = Story(
            run="r",
            version="0",
            target="2 agents of its own",
            versions={"PostgreSQL": "15"},
            begin_ms=1000,
            end_ms=61_000,
            interrupted=False,
            clients=Clients(
                present=[LoadClient(name="librdkafka", version="2")], absent=["java: there is no java on PATH"]
            ),
            happened=[
                Happened(kind="kill", target="agent-1", begin_ms=5000, end_ms=7000, detail="for 2.0 s"),
                Happened(kind="s3", target="s3", begin_ms=9000, end_ms=12_000, detail="hold for 3.0 s; <late>"),
            ],
            left_out=Counter({FaultKind.PAUSE: 2}),
            skipped={FaultKind.CLOCK: "libfaketime is not installed"},
            good_share=0.9,
            problems=[],
        )
        return compose(options, story, tale.verdict())

    def test_the_text_says_who_took_part_what_was_done_and_what_was_found(self, tmp_path: Path) -> None:
        tale = Tale(tmp_path / "history")
        tale.sent(1)
        tale.acknowledged(0, 0)
        tale.log()
        document = self.document(tale, tmp_path)
        text = as_text(document)
        assert text.startswith("chaos: 1 anomaly (lost 1)\n")
        assert "java: there is no java on PATH" in text
        assert "kill 1, pause 0, stop 0, s3 1, database 0" in text
        assert "libfaketime is not installed" in text
        assert "lost: t/0: record 0 of p, acknowledged at offset 0 (at 00:00:02 UTC)" in text
        assert "faults left out (floor, or target busy)  pause 2\n" in text
        assert "0 records: reported as failed to the application (0 of them are in the log)\n" in text
        assert "  1970-01-01 00:00:01 UTC\n" in text
        assert "longest silence while an agent ran and both stores answered; limit 60 s" in text
        assert document["passed"] is False

    def test_the_page_is_whole_in_itself_and_marks_faults_silences_and_anomalies(self, tmp_path: Path) -> None:
        tale = Tale(tmp_path / "history")
        tale.sent(2)
        tale.acknowledged(0, 0, at=9000)
        tale.acknowledged(1, 1, at=9500)
        tale.log(0)
        page = as_page(self.document(tale, tmp_path))
        assert "<title>agent-1 killed at 00:00:05 UTC, started again after 2.0 s</title>" in page
        assert "<title>s3: connections held silent at 00:00:09 UTC, for 3.0 s; &lt;late&gt;</title>" in page
        assert "<title>nothing acknowledged for 8.0 s, until 00:00:09 UTC</title>" in page
        assert "<title>lost: t/0: record 1 of p, acknowledged at offset 1, at 00:00:09 UTC</title>" in page
        assert "kill: SIGKILL of an agent" in page, "the key says what each fault is"
        assert "<th>longest silence while an agent ran and both stores answered; limit 60 s</th>" in page
        assert "src=" not in page
        assert "href=" not in page

    def test_a_run_without_any_record_has_a_page_too(self, tmp_path: Path) -> None:
        assert "no anomaly" in as_page(self.document(Tale(tmp_path / "history"), tmp_path))
