"""What stores answer with. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Operation(StrEnum):
    """The kinds of request, as S3 bills them. Faults are chosen by them too."""

    PUT = "put"
    GET = "get"
    RANGE_GET = "range_get"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"
    MULTIPART = "multipart"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """``modified_ms`` may be rounded down to the second (HTTP); ``etag`` is None where the store has none."""

    key: str
    size_bytes: int
    modified_ms: int
    etag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A body as it came, and how large the store says the whole object is."""

    data: memoryview
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """One request's worth of a listing. ``next_start_after`` is None on the last page; a page may be empty."""

    objects: Sequence[ObjectInfo]
    next_start_after: str | None
