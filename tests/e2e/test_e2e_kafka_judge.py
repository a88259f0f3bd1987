"""The judge of Kafka clients' stories finds every kind of anomaly."""

from __future__ import annotations

from e2e_kafka_clients import Event, KafkaLedger
from e2e_kafka_judge import judge_kafka


def ledger(*, exactly_once: bool = True) -> KafkaLedger:
    """A producer has sent three records, was told so, and a group has read them."""
    made = KafkaLedger()
    made.sent["p", 0] = ["a", "b", "c"]
    if exactly_once:
        made.exactly_once.add("p")
    for offset, value in enumerate("abc"):
        made.acks.append(Event(who="p", partition=0, offset=offset, value=value))
        made.reads.append(Event(who="g", partition=0, offset=offset, value=value))
    return made


def verdict(log: str, made: KafkaLedger) -> str:
    return "; ".join(judge_kafka({0: list(log)}, made, groups=["g"]))


def test_a_clean_history_has_no_problems() -> None:
    assert verdict("abc", ledger()) == ""


def test_a_lost_acknowledged_record_is_found() -> None:
    assert "'c' was acknowledged at 2" in verdict("ab", ledger())


def test_a_record_at_another_offset_than_told_is_found() -> None:
    assert "'a' was acknowledged at 0 by p; there is 'b'" in verdict("bac", ledger())


def test_a_record_that_was_read_and_is_gone_is_found() -> None:
    made = ledger()
    made.acks.clear()
    assert "'c' was read at 2" in verdict("ab", made)


def test_a_duplicate_of_an_idempotent_producer_is_found_and_of_another_is_none() -> None:
    made = ledger()
    made.reads.append(Event(who="g", partition=0, offset=3, value="a"))
    assert "'a' is there 2 times: [0, 3]" in verdict("abca", made)
    plain = ledger(exactly_once=False)
    plain.reads.append(Event(who="g", partition=0, offset=3, value="a"))
    assert verdict("abca", plain) == ""


def test_disorder_is_found() -> None:
    made = ledger()
    made.acks.clear()
    made.reads.clear()
    assert "'b' at 0 stands before 'a' at 1" in verdict("bac", made)


def test_a_record_of_nobody_is_found() -> None:
    assert "it was not sent here" in verdict("abcx", ledger())


def test_a_record_that_a_group_never_got_is_found() -> None:
    made = ledger()
    made.reads.pop(1)
    assert "g was never given 1 records, the first at 1" in verdict("abc", made)


def test_what_clients_found_themselves_is_told() -> None:
    made = ledger()
    made.contradictions.append("g: generation 1 after 2")
    assert verdict("abc", made) == "g: generation 1 after 2"
