"""The frame of a Python client process.

    python -m streamhouse.chaos.load.process SPEC.json

It ends in order when its stdin ends or says "stop": so it never outlives the run that started it. "drain" tells the
groups to read to the end of the log, and then to end.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from pathlib import Path

from streamhouse.chaos.history import History
from streamhouse.chaos.load.spec import LoadSpec, Role, load_spec
from streamhouse.core.clock import SystemClock


class Orders:
    """What the run has told this process so far."""

    def __init__(self) -> None:
        self.drain = threading.Event()
        self.stop = threading.Event()

    def listen(self) -> None:
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "drain":
                self.drain.set()
            else:
                break
        self.stop.set()


def main(arguments: list[str]) -> int:
    spec = load_spec(Path(arguments[0]))
    faulthandler.register(signal.SIGQUIT, all_threads=True)  # what Java does by itself; works in a frozen interpreter
    orders = Orders()
    orders.listen()
    with History(Path(spec.history), spec.process, wall_ms=SystemClock().wall_ms) as history:
        return _run(spec, history, orders)


def _run(spec: LoadSpec, history: History, orders: Orders) -> int:
    if spec.client == "aiokafka":
        from streamhouse.chaos.load import aio

        return aio.run(spec, history, orders)
    from streamhouse.chaos.load import librdkafka, librdkafka_groups

    match spec.role:
        case Role.PRODUCERS:
            return librdkafka.run_producers(spec, history, orders)
        case Role.GROUPS:
            return librdkafka_groups.run_groups(spec, history, orders)
        case Role.TOPICS:
            return librdkafka.create_topics(spec, orders)
        case Role.FINAL:
            return librdkafka_groups.read_finally(spec, history, orders)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
