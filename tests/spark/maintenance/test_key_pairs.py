"""P.4: which pairs and offsets a shuffle carries, and that what is missing is noticed."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from streamhouse.core.errors import PassIncomplete
from streamhouse.spark.maintenance.key_pairs import (
    Heard,
    KeptOffsets,
    KeyPairs,
    Message,
    MessageKind,
    newest_offsets,
    offsets_by_item,
)
from streamhouse.spark.maintenance.key_sharing import bucket_size, buckets_for

SECRET = bytes(range(16))


class Records:
    """Records by offset and key, as RecordKeys has them."""

    def __init__(self, *pairs: tuple[int, bytes | None]) -> None:
        self.offsets = memoryview(array("q", [offset for offset, _ in pairs]))
        self.keys = b"".join(key or b"" for _, key in pairs)
        ends = np.cumsum([0, *(len(key or b"") for _, key in pairs)])
        self.bounds = memoryview(array("i", ends.tolist()))
        self.without_key = bytes(key is None for _, key in pairs)


def reduced(sent: dict[int, list[Message]], senders: int) -> list[int]:
    """The newest offsets of all buckets."""
    found: list[int] = []
    for messages in sent.values():
        heard = Heard()
        found += newest_offsets(heard.blocks(messages), 100).tolist()
        heard.check(senders)
    return sorted(found)


@pytest.mark.parametrize("window_pairs", [1, 7, 1_000])
def test_the_newest_of_each_key_is_found_in_whatever_order_and_pieces_pairs_come(window_pairs: int) -> None:
    rng = random.Random(window_pairs)
    keys: list[bytes | None] = [None, b"", *(b"key-%d" % number for number in range(20))]
    log = [(offset, rng.choice(keys)) for offset in range(200)]
    sent: dict[int, list[Message]] = defaultdict(list)
    for sender in range(4):
        pairs = KeyPairs(secret=SECRET, buckets=3, window_pairs=window_pairs)
        for at in range(sender * 50, sender * 50 + 50, 5):
            pairs.put_all(Records(*log[at : at + 5]))  # type: ignore[arg-type]
            if pairs.is_full:
                for bucket, message in pairs.take(sender):
                    sent[bucket].append(message)
        for bucket, message in pairs.take(sender):
            sent[bucket].append(message)
        for bucket, count in enumerate(pairs.sent):
            sent[bucket].append((MessageKind.END, sender, count, b""))
    for messages in sent.values():
        rng.shuffle(messages)
    assert reduced(sent, 4) == sorted({key: offset for offset, key in log if key is not None}.values())


def test_a_window_sends_one_pair_of_each_key() -> None:
    pairs = KeyPairs(secret=SECRET, buckets=2)
    pairs.put_all(Records(*((offset, b"%d" % (offset % 5)) for offset in range(1_000))))  # type: ignore[arg-type]
    assert sum(message[2] for _, message in pairs.take(0)) == sum(pairs.sent) == 5
    assert list(pairs.take(0)) == []


def test_an_item_gets_the_offsets_up_to_its_end_and_their_number() -> None:
    sent = list(offsets_by_item(np.array([3, 4, 9, 12]), [4, 8, 12], 7))
    assert [(item, kind, sender, count) for item, (kind, sender, count, _) in sent] == [
        (0, MessageKind.BLOCK, 7, 2),
        (0, MessageKind.END, 7, 2),
        (1, MessageKind.END, 7, 0),
        (2, MessageKind.BLOCK, 7, 2),
        (2, MessageKind.END, 7, 2),
    ]
    with pytest.raises(PassIncomplete, match="offset 12, and the last item ends at 11"):
        list(offsets_by_item(np.array([3, 12]), [4, 11], 7))


BLOCK: Message = (MessageKind.BLOCK, 0, 2, b"x")
END: Message = (MessageKind.END, 0, 2, b"")


@pytest.mark.parametrize(
    "messages",
    [[BLOCK], [END], [BLOCK, END], [BLOCK, BLOCK, END, (MessageKind.END, 1, 0, b"")], []],
    ids=["no end", "no block", "another sender", "a block twice", "nothing"],
)
def test_what_has_not_come_is_noticed(messages: list[Message]) -> None:
    heard = Heard()
    list(heard.blocks(messages))
    with pytest.raises(PassIncomplete, match="the shuffle brought"):
        heard.check(2)


def test_a_bucket_with_more_keys_than_it_has_room_for_is_refused() -> None:
    pairs = KeyPairs(secret=SECRET, buckets=1)
    pairs.put_all(Records(*((offset, b"%d" % offset) for offset in range(9))))  # type: ignore[arg-type]
    ((_, (_, _, count, block)),) = pairs.take(0)
    assert newest_offsets([(count, block)], 9).tolist() == list(range(9))
    with pytest.raises(PassIncomplete, match="more than 8 keys"):
        newest_offsets([(count, block)], 8)
    with pytest.raises(PassIncomplete, match="bytes for 9 pairs"):
        newest_offsets([(count, block[1:])], 9)


def kept(*offsets: int) -> KeptOffsets:
    return KeptOffsets([(1, array("q", [offset]).tobytes()) for offset in offsets])


def test_records_at_other_offsets_are_superseded() -> None:
    stays = kept(9, 4)
    first: Any = Records((2, b"a"), (4, b"b"), (5, b"c"))
    assert stays.superseded(first) == b"\1\0\1"
    with pytest.raises(PassIncomplete, match="1 records stay, and the shuffle brought the offsets of 2"):
        stays.check()
    last: Any = Records((9, b"a"), (10, b"b"))
    assert stays.superseded(last) == b"\0\1"
    stays.check()
    with pytest.raises(PassIncomplete):
        stays.read_again().check()
    assert kept().superseded(last) == b"\1\1"


def test_buckets_have_room_for_every_record_with_a_key_of_its_own() -> None:
    assert [buckets_for(count, max_keys=1_000) for count in (0, 1, 800, 801, 80_000)] == [1, 1, 1, 2, 100]
    assert bucket_size(80_000_000, buckets_for(80_000_000, max_keys=1_000_000)) <= 1_000_000 + 65_536
