"""What the Python client programs share: the command line, records as JSON, and the stories told by two members.

Knows no Kafka client. A program gives its scenarios, and for the stories a way to make a member or a producer.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

JOIN_TIMEOUT_S = 60.0
PROGRESS_EVERY = 20


class Unsupported(Exception):
    """The client has no such thing."""


class Request:
    def __init__(self, scenario: str, bootstrap: str, topic: str, args: dict[str, Any]) -> None:
        self.scenario = scenario
        self.bootstrap = bootstrap
        self.topic = topic
        self.args = args

    @property
    def topics(self) -> list[str]:
        return list(self.args.get("topics") or [self.topic])

    @property
    def deadline(self) -> float:
        return time.monotonic() + float(self.args.get("timeout_ms", 30_000)) / 1000


Scenario = Callable[[Request], Any]


def serve(scenarios: dict[str, Scenario]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--topic", default="")
    parser.add_argument("--json-args", default="{}")
    chosen = parser.parse_args()
    text = chosen.json_args
    args = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    request = Request(chosen.scenario, chosen.bootstrap, chosen.topic, args)
    try:
        if chosen.scenario not in scenarios:
            raise Unsupported(f"no scenario {chosen.scenario}")
        answer = {"result": scenarios[chosen.scenario](request)}
    except Unsupported as why:
        answer = {"unsupported": str(why)}
    except BaseException as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    say(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a client that never end must not keep the answer


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def unpack(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def pack(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def headers_of(record: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(name, unpack(value)) for name, value in record.get("headers") or []]


def record_read(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": pack(key),
        "value": pack(value),
        "headers": [[name, pack(content)] for name, content in headers],
    }


def in_order(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: (record["topic"], record["partition"], record["offset"]))


def run_steps(request: Request, admin: object, code: Callable[[Exception], Any]) -> Any:
    """Each public method of ``admin`` is a step that its client can do."""
    steps = {name: getattr(admin, name) for name in vars(type(admin)) if not name.startswith("_")}
    results: list[dict[str, Any]] = []
    for step in request.args["steps"]:
        action = steps.get(step["do"])
        if action is None:
            results.append({"unsupported": True})
            continue
        try:
            results.append({"ok": action(step)})
        except Unsupported:
            results.append({"unsupported": True})
        except Exception as error:
            traceback.print_exc()
            results.append({"error": code(error)})
    return results


class Member(Protocol):
    """A group member that polls by itself until it is closed."""

    def owned(self) -> set[int]: ...

    def lost(self) -> set[int] | None:
        """Every partition it had to give up since it started; none when the client does not tell."""
        ...

    def assignments(self) -> int: ...

    def close(self) -> None: ...


class Owning:
    """What a member has and had, as its client's callbacks set it: most of a ``Member``."""

    def __init__(self) -> None:
        self._owned: set[int] = set()
        self._lost: set[int] = set()
        self._assignments = 0

    def owned(self) -> set[int]:
        return set(self._owned)

    def lost(self) -> set[int]:
        return set(self._lost)

    def assignments(self) -> int:
        return self._assignments


MakeMember = Callable[[str | None, Callable[[bytes | None], None]], Member]


def ignore(_value: bytes | None) -> None:
    pass


def wait_for(what: str, condition: Callable[[], bool], timeout_s: float = JOIN_TIMEOUT_S) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {timeout_s:.0f} s for: {what}")
        time.sleep(0.02)


def rebalance(request: Request, make_member: MakeMember) -> dict[str, Any]:
    everything = set(range(int(request.args["partitions"])))
    static = bool(request.args.get("static"))
    first = make_member("first" if static else None, ignore)
    wait_for("the first member to own every partition", lambda: first.owned() == everything)
    alone = sorted(first.owned())
    second = make_member("second" if static else None, ignore)

    def shared() -> bool:
        one, two = first.owned(), second.owned()
        return bool(one) and bool(two) and not one & two and one | two == everything

    wait_for("two members to share the partitions", shared)
    lost = first.lost()
    result: dict[str, Any] = {"alone": alone, "together": sorted([sorted(first.owned()), sorted(second.owned())])}
    if static:
        before, owned = first.assignments(), second.owned()
        second.close()
        again = make_member("second", ignore)
        wait_for("the restarted static member to own something", lambda: bool(again.owned()))
        result |= {"same": again.owned() == owned, "disturbed": first.assignments() - before}
        again.close()
    else:
        result["lost"] = None if lost is None else len(lost)
        second.close()
        wait_for("the first member to own everything again", lambda: first.owned() == everything)
        result["after"] = sorted(first.owned())
    first.close()
    return result


class SoakProducer(Protocol):
    def send(self, partition: int, value: bytes, done: Callable[[Exception | None], None]) -> None: ...

    def close(self) -> None:
        """Wait for everything that was sent."""
        ...


def soak(request: Request, make_producer: Callable[[], SoakProducer], make_member: MakeMember) -> dict[str, Any]:
    """Produce at a steady rate and read the same records in a group, whatever happens to the brokers."""
    count, partitions = int(request.args["count"]), int(request.args["partitions"])
    pause_s = 1 / float(request.args["rate_per_s"])
    lock = threading.Lock()
    acked: set[bytes] = set()
    failed: Counter[str] = Counter()
    seen: set[bytes] = set()

    def on_record(value: bytes | None) -> None:
        if value is not None:
            seen.add(value)

    def done_for(value: bytes) -> Callable[[Exception | None], None]:
        def done(error: Exception | None) -> None:
            with lock:
                if error is None:
                    acked.add(value)
                    if len(acked) % PROGRESS_EVERY == 0:
                        say({"progress": len(acked)})
                else:
                    failed[str(error)[:120]] += 1

        return done

    member = make_member(None, on_record)
    producer = make_producer()
    for number in range(count):
        value = str(number).encode()
        producer.send(number % partitions, value, done_for(value))
        time.sleep(pause_s)
    producer.close()
    until = request.deadline
    while not acked <= seen and time.monotonic() < until:
        time.sleep(0.05)
    missing = len(acked - seen)
    if not missing:
        member.close()
    return {"acked": len(acked), "failed": dict(failed), "missing": missing}
