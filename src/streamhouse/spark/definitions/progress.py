"""Which batch a target writes, skips or refuses. Pure.

A target keeps one ``Progress`` and changes it in the same commit as the rows. The progress says how far into its
sources the rows reach. A batch is written only if it begins exactly there. This one rule makes replays, killed runners,
two runners at a time, restored checkpoints and new checkpoints safe:

    begins where the target stands         write it
    is the batch that was written last     skip it: this is a replay
    anything else                          refuse it: rows would be doubled or missing

    spark's checkpoint                     target
    batch 7: [120, 150)          ──►       120   write, now 150
    batch 7 again (killed)       ──►       150   skip
    batch 5: [80, 100)           ──►       150   refuse, an old checkpoint was restored
    new checkpoint, batch 0: [150, 170) ─► 150   write: a stateless pipeline whose checkpoint was lost goes on
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from streamhouse.core.errors import BatchRegressed, ConfigError, CorruptDocument, InvalidRequest
from streamhouse.core.ids import TopicId, parse_topic_id, topic_id_text
from streamhouse.spark.offsets import Offsets, StreamOffset, TopicPartition, offsets_document, parse_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """The position up to which one source has been read."""

    offsets: Offsets
    topic_ids: Mapping[str, TopicId]

    def matches(self, other: SourcePosition) -> bool:
        """Partitions that were never read may be listed, or not."""
        return self._read() == other._read()

    def _read(self) -> dict[tuple[TopicId | None, TopicPartition], int]:
        return {(self.topic_ids.get(each.topic), each): offset for each, offset in self.offsets.items() if offset > 0}


Position = tuple[SourcePosition, ...]
"""One for each source, in Spark's order of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    generation: int
    """The definition's generation. ``--reset`` begins a new one, for which earlier progress does not count."""
    query_id: str
    batch_id: int
    position: Position

    def to_json(self) -> str:
        sources = [
            {
                "offsets": offsets_document(source.offsets),
                "topics": {name: topic_id_text(topic_id) for name, topic_id in sorted(source.topic_ids.items())},
            }
            for source in self.position
        ]
        document = {"generation": self.generation, "query": self.query_id, "batch": self.batch_id, "sources": sources}
        return json.dumps(document, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch, by what it reads."""

    owner: str
    """The pipeline or table, for messages: "pipeline orders"."""
    generation: int
    query_id: str
    batch_id: int
    start: Position
    end: Position

    def __str__(self) -> str:
        return f"batch {self.batch_id} of the {self.owner}"

    @property
    def done(self) -> Progress:
        """Return what a target remembers when it has this batch."""
        return Progress(generation=self.generation, query_id=self.query_id, batch_id=self.batch_id, position=self.end)


class BatchCheck(Enum):
    WRITE = "write"
    SKIP = "skip"


def read_progress(text: str) -> Progress:
    """Raises CorruptDocument."""
    try:
        document: dict[str, Any] = json.loads(text)
        return Progress(
            generation=int(document["generation"]),
            query_id=str(document["query"]),
            batch_id=int(document["batch"]),
            position=tuple(
                SourcePosition(
                    offsets=parse_offsets(json.dumps(source["offsets"]), lowest=0),
                    topic_ids={name: parse_topic_id(topic_id) for name, topic_id in source["topics"].items()},
                )
                for source in document["sources"]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest, ConfigError) as error:
        raise CorruptDocument(f"a target's progress cannot be read: {text[:200]!r}") from error


def decide(stored: Progress | None, batch: Batch) -> BatchCheck:
    """Decide what to do with ``batch``. Raises BatchRegressed."""
    if stored is not None and stored.generation > batch.generation:
        raise _refused(batch, "the definition was reset meanwhile", hint="stop this runner: it runs an old definition")
    if stored is None or stored.generation < batch.generation:
        if batch.batch_id == 0:
            return BatchCheck.WRITE
        raise _refused(batch, "the target does not have the batches before it")
    if (stored.query_id, stored.batch_id) == (batch.query_id, batch.batch_id):
        if matches(stored.position, batch.end):
            return BatchCheck.SKIP
        # A restored checkpoint numbers its batches anew: another one of this number must not be dropped (R8).
        raise _refused(batch, "the target has another batch of that number")
    is_later = stored.query_id != batch.query_id or batch.batch_id > stored.batch_id
    if is_later and matches(stored.position, batch.start):
        return BatchCheck.WRITE
    raise _refused(batch, f"it does not begin where the target stands (batch {stored.batch_id})")


def matches(one: Position, other: Position) -> bool:
    return len(one) == len(other) and all(mine.matches(theirs) for mine, theirs in zip(one, other, strict=True))


def position_of(offset: StreamOffset) -> SourcePosition:
    return SourcePosition(offsets=offset.offsets, topic_ids=offset.topic_ids)


def starts_by_topic(position: Position) -> dict[str, SourcePosition] | None:
    """Where each topic goes on; None when two sources of one topic stand at different places."""
    found: dict[str, SourcePosition] = {}
    for source in position:
        for topic, topic_id in source.topic_ids.items():
            offsets = {each: offset for each, offset in source.offsets.items() if each.topic == topic}
            mine = SourcePosition(offsets=offsets, topic_ids={topic: topic_id})
            if topic in found and not found[topic].matches(mine):
                return None
            found[topic] = mine
    return found


def _refused(batch: Batch, why: str, *, hint: str | None = None) -> BatchRegressed:
    return BatchRegressed(
        f"{batch} was refused: {why}",
        hint=hint
        or "a checkpoint was restored or lost; `start --reset` begins anew, after you have emptied the target",
    )
