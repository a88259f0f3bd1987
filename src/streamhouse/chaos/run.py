"""One run from start to report: fleet, load, faults, healing, the last read, the verdict."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from streamhouse import __version__
from streamhouse.chaos.checker import judge
from streamhouse.chaos.fleet.agents import AgentProcess, KnownProcess
from streamhouse.chaos.fleet.fleet import Fleet
from streamhouse.chaos.fleet.nemesis import Nemesis
from streamhouse.chaos.fleet.plan import FaultSchedule
from streamhouse.chaos.load.clients import ClientProcess, Clients, LoadClient, find_clients
from streamhouse.chaos.load.spec import NO_BROKER, GroupSpec, LoadSpec, Role
from streamhouse.chaos.options import AGENT_FAULTS, DEFAULT_TOPICS, FaultKind, Options
from streamhouse.chaos.report.document import Story, compose
from streamhouse.chaos.report.page import as_page
from streamhouse.chaos.report.text import as_text
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidRequest, ServiceFailed
from streamhouse.core.randomness import SeededRandomness, SystemRandomness

_TOPICS_S: Final = 60.0
_LAST_READ: Final = 4
"""Without the last read nothing is judged, so it may stand still for so many times ``settle``."""
_WARM_UP_S: Final = 3.0
_GRACE_S: Final = 60.0  # beyond ``settle``, before a client process that does not end is killed
_STOP_S: Final = 40.0
_MARK: Final = ".streamhouse-chaos"  # says that a folder of results is one
_GROUPS: Final = {
    "librdkafka": (("classic", 2), ("consumer", 2)),
    "aiokafka": (("classic", 2),),
    "java": (("consumer", 2),),
}


class Interrupted:
    """The first Ctrl-C or SIGTERM ends the run in order; the second leaves out the waiting."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bool:
        return self.count > 0

    def twice(self) -> bool:
        return self.count > 1

    @contextmanager
    def heard(self) -> Iterator[None]:
        def hear(number: int, frame: FrameType | None) -> None:
            self.count += 1

        before = [(each, signal.signal(each, hear)) for each in (signal.SIGINT, signal.SIGTERM)]
        try:
            yield
        finally:
            for each, handler in before:
                signal.signal(each, handler)


def run_chaos(
    options: Options, *, say: Callable[[str], None], begins: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Returns the report, which is also in ``options.results`` as report.json, report.txt and report.html.

    Calls ``begins`` when options, clients and the folder of results are good. Raises KeyboardInterrupt when it is
    interrupted before the load began: there is nothing to report yet.
    """
    options.check()
    clients = find_clients(options.clients, options.kafka_jars)
    interrupted = Interrupted()
    with interrupted.heard(), ExitStack() as stack:
        run = Run(options, clients, interrupted, say, stack)
        begins()
        return run.whole()


class Run:
    def __init__(
        self,
        options: Options,
        clients: Clients,
        interrupted: Interrupted,
        say: Callable[[str], None],
        stack: ExitStack,
    ) -> None:
        self._options = options
        self._clients = clients
        self._interrupted = interrupted
        self._say = say
        self._stack = stack
        self._clock = SystemClock()
        self._run = f"chaos-{SystemRandomness().uuid().hex[:8]}"
        self._topics = {f"{self._run}-{name}": count for name, count in DEFAULT_TOPICS.items()}
        self._problems: list[str] = []
        self._load: list[ClientProcess] = []
        self._killed: list[ClientProcess] = []
        """Clients that ended by a signal: the last lines of their history may be missing."""
        self._cut_short = False
        """The second Ctrl-C came before the last read had ended."""
        self._all_is_well = False
        self._home: Path | None = None
        self._history = options.results / "history"
        self._logs = options.results / "logs"
        _make_folders(options.results, self._history, self._logs)
        self._stack.callback(self._drop_logs)  # it runs last: when agents and clients have written their last lines

    def whole(self) -> dict[str, Any]:
        fleet = self._fleet()
        bootstrap = fleet.bootstrap if fleet is not None else str(self._options.bootstrap)
        nemesis, skipped = self._nemesis(fleet)
        self._stack.callback(self._end_load)
        self._create_topics(bootstrap)
        begin_ms = self._clock.wall_ms()
        self._start_load(bootstrap)
        nemesis.watch(_WARM_UP_S, stopped=self._interrupted, tick=self._tick(nemesis))
        self._torment(nemesis)
        self._say("healing")
        nemesis.heal()
        self._settle(nemesis, fleet)
        nemesis.finish()
        end_ms = self._clock.wall_ms()
        drained = self._end_in_order(bootstrap)
        if fleet is not None:
            self._stop_fleet(fleet)
        self._say("the checker reads the history")
        verdict = judge(
            self._history,
            without_agents=nemesis.without_agents,
            outages=nemesis.outages(),
            unavailable_limit_ms=int(self._options.unavailable_limit_s * 1000),
            drained=drained,
            killed={process.spec.process for process in self._killed if process.spec.role is Role.PRODUCERS},
            cut_short=self._cut_short,
        )
        story = Story(
            run=self._run,
            version=__version__,
            target=f"{len(fleet.agents)} agents of its own" if fleet is not None else f"the fleet at {bootstrap}",
            versions=fleet.versions if fleet is not None else {},
            begin_ms=begin_ms,
            end_ms=end_ms,
            interrupted=self._interrupted(),
            clients=self._clients,
            happened=nemesis.happened,
            left_out=nemesis.left_out,
            skipped=skipped,
            good_share=nemesis.good_share,
            problems=self._problems,
            killed=[process.name for process in self._killed],
            judged=not self._cut_short,
            data=str(self._home) if self._options.keep and self._home is not None else None,
        )
        document = compose(self._options, story, verdict)
        self._write(document)
        return document

    # The fleet and its faults.

    def _fleet(self) -> Fleet | None:
        if self._options.bootstrap is not None:
            return None
        self._say("PostgreSQL, S3 and the agents start")
        home = self._home = Path(tempfile.mkdtemp(prefix="streamhouse-chaos-"))
        if not self._options.keep:
            self._stack.callback(shutil.rmtree, home, ignore_errors=True)
        fleet = Fleet(self._options, home, logs=self._logs, interrupted=self._interrupted)
        self._stack.callback(fleet.keep_logs)
        return self._stack.enter_context(fleet)

    def _nemesis(self, fleet: Fleet | None) -> tuple[Nemesis, dict[FaultKind, str]]:
        agents: Sequence[AgentProcess] = (
            fleet.agents if fleet is not None else list(map(KnownProcess, self._options.pids))
        )
        skipped = dict(fleet.skipped) if fleet is not None else _not_on_a_running_fleet(self._options)
        self._kinds = [kind for kind in self._options.faults if kind not in skipped]
        plan = FaultSchedule(
            SeededRandomness(self._options.seed),
            kinds=self._kinds,
            agents=max(1, len(agents)),
            every_s=self._options.fault_every_s,
            lease_s=self._options.agent_settings().lease.ttl_ms / 1000,
        )
        nemesis = Nemesis(
            plan,
            agents,
            s3=fleet.s3 if fleet is not None else None,
            database=fleet.database if fleet is not None else None,
            floor=self._options.floor,
            wall_ms=self._clock.wall_ms,
        )
        self._stack.callback(nemesis.release)
        return nemesis, skipped

    def _torment(self, nemesis: Nemesis) -> None:
        seconds = self._options.minutes * 60
        if self._kinds:
            nemesis.run(seconds, stopped=self._interrupted, tick=self._tick(nemesis))
        else:
            nemesis.watch(seconds, stopped=self._interrupted, tick=self._tick(nemesis))

    def _tick(self, nemesis: Nemesis) -> Callable[[], None]:
        told_s = 0.0
        begun_s = time.monotonic()

        def tick() -> None:
            nonlocal told_s
            now_s = time.monotonic()
            if now_s - told_s < 1.0:
                return
            told_s = now_s
            counts = ", ".join(f"{kind} {count}" for kind, count in sorted(nemesis.counts().items())) or "none yet"
            self._say(f"{now_s - begun_s:.0f} s; faults: {counts}")

        return tick

    def _settle(self, nemesis: Nemesis, fleet: Fleet | None) -> None:
        """All agents are up and all stores answer: a last while of load that must succeed."""
        if fleet is not None:
            try:
                fleet.wait_ready(self._interrupted.twice)
            except ServiceFailed as error:
                self._problems.append(str(error))
        if not self._interrupted.twice():
            nemesis.watch(_WARM_UP_S, stopped=self._interrupted.twice, tick=self._tick(nemesis))

    def _stop_fleet(self, fleet: Fleet) -> None:
        for agent in fleet.agents:
            agent.send(signal.SIGTERM)
        for agent in fleet.agents:
            if not self._interrupted.twice() and agent.wait(_STOP_S) is None:
                self._problems.append(f"{agent.name} did not end within {_STOP_S:.0f} s of SIGTERM")

    # The load.

    def _spec(self, client: LoadClient, role: Role, bootstrap: str, groups: Sequence[GroupSpec] = ()) -> LoadSpec:
        return LoadSpec(
            role=role,
            client=client.name,
            run=self._run,
            bootstrap=bootstrap,
            topics=self._topics,
            history=str(self._history.resolve()),
            process=client.name,
            seed=self._options.seed,
            rate=self._options.rate / len(self._clients.present),
            settle_s=self._patience_s(role),
            groups=groups,
        )

    def _create_topics(self, bootstrap: str) -> None:
        self._say("the topics are created")
        client = self._clients.python
        process = ClientProcess(self._spec(client, Role.TOPICS, bootstrap), client, self._logs)
        try:
            deadline_s = time.monotonic() + _TOPICS_S + _GRACE_S
            while process.wait(0.2) is None and time.monotonic() < deadline_s:
                if self._interrupted():
                    raise KeyboardInterrupt
            if process.ended() == NO_BROKER:
                raise ServiceFailed(
                    f"no Kafka broker answers at {bootstrap} (waited {_TOPICS_S:.0f} s)",
                    hint="check --bootstrap, and that the fleet runs",
                )
            if process.ended() != 0:
                raise ServiceFailed(
                    f"the topics of the run could not be created at {bootstrap}: {process.last_words()}",
                    hint="check --bootstrap, and that the fleet runs",
                )
        finally:
            process.kill()

    def _start_load(self, bootstrap: str) -> None:
        for client in self._clients.present:
            groups = tuple(
                GroupSpec(name=f"{self._run}-{client.name}-{protocol}", protocol=protocol, members=members)
                for protocol, members in _GROUPS[client.name]
            )
            for role, its_groups in ((Role.PRODUCERS, ()), (Role.GROUPS, groups)):
                spec = self._spec(client, role, bootstrap, its_groups)
                self._load.append(ClientProcess(spec, client, self._logs))

    def _patience_s(self, role: Role) -> float:
        match role:
            case Role.TOPICS:
                return _TOPICS_S
            case Role.FINAL:
                return _LAST_READ * self._options.settle_s
            case _:
                return self._options.settle_s

    def _end_in_order(self, bootstrap: str) -> bool:
        """Producers first, then groups at the end of the log, then the last read. Whether all groups had their time."""
        producers = [each for each in self._load if each.spec.role is Role.PRODUCERS]
        groups = [each for each in self._load if each.spec.role is Role.GROUPS]
        for process in self._load:
            if process.ended() is not None:
                self._note_killed(process)
                self._problems.append(f"{process.name} ended early with {process.ended()}: {process.last_words()}")
        self._say("producers wait for their last answers")
        self._end_all(producers, "stop")
        self._say("groups read to the end")
        self._end_all(groups, "drain")
        if self._interrupted.twice():
            self._cut_short = True
            return False
        self._say("the whole log is read")
        client = self._clients.python
        final = ClientProcess(self._spec(client, Role.FINAL, bootstrap), client, self._logs)
        self._load.append(final)
        while final.wait(0.2) is None and not self._interrupted.twice():
            continue
        if final.ended() is None:
            final.kill()
            self._cut_short = True
        elif final.ended() != 0:
            self._problems.append(f"the last read did not reach the end: {final.last_words()}")
        return True

    def _end_all(self, processes: Sequence[ClientProcess], word: str) -> None:
        for process in processes:
            process.tell(word)
        deadline_s = time.monotonic() + self._options.settle_s + _GRACE_S
        for process in processes:
            while process.wait(0.2) is None and time.monotonic() < deadline_s and not self._interrupted.twice():
                continue
            if process.ended() is None:
                if not self._interrupted.twice():
                    self._problems.append(f"{process.name} did not end and was killed; its history may be incomplete")
                    process.show_threads()
                process.kill()
                self._note_killed(process)
                continue
            self._note_killed(process)
            if process.ended() != 0 and not any(process.name in problem for problem in self._problems):
                self._problems.append(f"{process.name} ended with {process.ended()}: {process.last_words()}")

    def _note_killed(self, process: ClientProcess) -> None:
        """Notes a client that ended by a signal. Java reports SIGTERM as 143."""
        code = process.ended()
        if code is not None and (code < 0 or code >= 128) and process not in self._killed:
            self._killed.append(process)

    def _end_load(self) -> None:
        for process in self._load:
            process.kill()

    # The report.

    def _write(self, document: dict[str, Any]) -> None:
        results = self._options.results
        (results / "report.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        (results / "report.txt").write_text(as_text(document))
        (results / "report.html").write_text(as_page(document))
        if document["passed"] and not self._options.keep:
            self._all_is_well = True
            shutil.rmtree(self._history, ignore_errors=True)

    def _drop_logs(self) -> None:
        if self._all_is_well:
            shutil.rmtree(self._logs, ignore_errors=True)


def _make_folders(results: Path, *folders: Path) -> None:
    """Makes empty folders. Folders of an earlier run are replaced; folders of another program are not touched."""
    try:
        _replace_folders(results, *folders)
    except OSError as error:
        raise InvalidRequest(
            f"the folder of results {results} cannot be made: {error.strerror or error}",
            hint="choose another one with --results",
        ) from error


def _replace_folders(results: Path, *folders: Path) -> None:
    mark = results / _MARK
    if not mark.exists() and any(folder.exists() for folder in folders):
        raise InvalidRequest(
            f"{results} holds a folder of another program, named as one of the run's own: history or logs",
            hint="name another folder with --results",
        )
    results.mkdir(parents=True, exist_ok=True)
    mark.touch()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()


def _not_on_a_running_fleet(options: Options) -> dict[FaultKind, str]:
    """The faults that are not possible on a fleet that the run did not start. Processes of ``--pids`` can be paused."""
    skipped = dict.fromkeys(options.faults, "the run did not start this fleet")
    if options.pids:
        skipped.pop(FaultKind.PAUSE, None)
        for kind in AGENT_FAULTS:
            if kind in skipped:
                skipped[kind] = "the run could not start these processes again"
    return skipped
