"""The verdict on what Kafka clients were told, given the log. Knows nothing but both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from e2e_kafka_clients import Event, KafkaLedger


def judge_kafka(logs: Mapping[int, Sequence[str]], ledger: KafkaLedger, *, groups: Sequence[str] = ()) -> list[str]:
    """What is wrong, in words; nothing when all is well. ``groups`` have read everything."""
    problems = list(ledger.contradictions)
    places: dict[int, defaultdict[str, list[int]]] = {}
    for partition, log in logs.items():
        places[partition] = defaultdict(list)
        for offset, value in enumerate(log):
            places[partition][value].append(offset)
    problems.extend(_strangers(places, ledger))
    problems.extend(_broken_promises(logs, ledger.acks, "was acknowledged"))
    problems.extend(_broken_promises(logs, ledger.reads, "was read"))
    problems.extend(_disorder(places, ledger))
    for group in groups:
        problems.extend(_unread(logs, ledger, group))
    return problems


def _strangers(places: Mapping[int, Mapping[str, Sequence[int]]], ledger: KafkaLedger) -> Iterator[str]:
    writers = {(partition, value): who for (who, partition), sent in ledger.sent.items() for value in sent}
    for partition, found in places.items():
        for value, at in found.items():
            who = writers.get((partition, value))
            if who is None:
                yield f"{partition}: {value!r} at {at}, and it was not sent here"
            elif len(at) > 1 and who in ledger.exactly_once:
                yield f"{partition}: {value!r} is there {len(at)} times: {at}"


def _broken_promises(logs: Mapping[int, Sequence[str]], events: Sequence[Event], told: str) -> Iterator[str]:
    for event in events:
        log = logs[event.partition]
        there = log[event.offset] if 0 <= event.offset < len(log) else None
        if there != event.value:
            yield f"{event.partition}: {event.value!r} {told} at {event.offset} by {event.who}; there is {there!r}"


def _disorder(places: Mapping[int, Mapping[str, Sequence[int]]], ledger: KafkaLedger) -> Iterator[str]:
    for (who, partition), sent in ledger.sent.items():
        if who not in ledger.exactly_once:
            continue
        last, last_value = -1, ""
        for value in sent:
            for at in places[partition].get(value, ()):
                if at < last:
                    yield f"{partition}: {value!r} at {at} stands before {last_value!r} at {last}"
                last, last_value = at, value


def _unread(logs: Mapping[int, Sequence[str]], ledger: KafkaLedger, group: str) -> Iterator[str]:
    read: defaultdict[int, set[int]] = defaultdict(set)
    for event in ledger.reads:
        if event.who == group:
            read[event.partition].add(event.offset)
    for partition, log in logs.items():
        missing = sorted(set(range(len(log))) - read[partition])
        if missing:
            yield f"{partition}: {group} was never given {len(missing)} records, the first at {missing[0]}"
