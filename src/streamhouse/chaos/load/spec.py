"""The specification of a client process: one JSON document in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

NO_BROKER: Final = 3
"""The exit code of the process that creates topics, when no broker ever answered."""


class Role(StrEnum):
    PRODUCERS = "producers"
    GROUPS = "groups"
    TOPICS = "topics"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    name: str
    protocol: str
    """``classic``, or ``consumer`` for KIP-848."""
    members: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    role: Role
    client: str
    run: str
    bootstrap: str
    topics: Mapping[str, int]
    """Partitions by name."""
    history: str
    process: str
    seed: int
    rate: float
    """Small records a second, all producers of the process together."""
    settle_s: float
    """How long it may take to end in order."""
    groups: Sequence[GroupSpec] = ()

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2))

    def save_for_java(self, path: Path) -> None:
        """Save it as Java properties, which Java's standard library reads."""
        fields = {name: value for name, value in asdict(self).items() if name not in ("topics", "groups")}
        fields["topics"] = ",".join(f"{name}:{partitions}" for name, partitions in self.topics.items())
        fields["groups"] = ",".join(f"{group.name}:{group.protocol}:{group.members}" for group in self.groups)
        path.write_text("".join(f"{name}={value}\n" for name, value in fields.items()))

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(topic, partition) for topic, count in self.topics.items() for partition in range(count)]


def load_spec(path: Path) -> LoadSpec:
    fields = json.loads(path.read_text())
    return LoadSpec(
        **{
            **fields,
            "role": Role(fields["role"]),
            "groups": tuple(GroupSpec(**group) for group in fields["groups"]),
        }
    )
