"""The code for S3, GCS and Azure over obstore's memory: prefixes, create-only puts, pages of a listing, errors."""

from __future__ import annotations

import obstore
import pytest
from cloud_ground import cloud_store, paths
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore as ObstoreMemory

from streamhouse.core.errors import LimitExceeded, ObjectExists, ObjectNotFound, StoreUnavailable
from streamhouse.objectstore import checks, cloud
from streamhouse.objectstore.cloud import _KEY_CHARACTERS, CloudStore, _just_below


async def all_keys(store: CloudStore, prefix: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix)]


async def test_keys_stand_under_the_prefix_of_the_store_and_are_told_without_it() -> None:
    memory = ObstoreMemory()
    store, other = cloud_store(memory), cloud_store(memory, prefix="other/")
    await store.put("a/x", [b"12", b"3"])
    await other.put("a/x", b"theirs")
    assert paths(memory) == ["other/a/x", "p/a/x"]
    assert await store.get("a/x") == b"123"
    assert (await store.head("a/x")).key == "a/x"
    assert await all_keys(store) == ["a/x"]
    await store.delete(["a/x"])
    assert paths(memory) == ["other/a/x"]


async def test_a_put_and_a_copy_never_replace_an_object() -> None:
    store = cloud_store(ObstoreMemory())
    await store.put("a", b"first")
    await store.put("b", b"second")
    with pytest.raises(ObjectExists, match="put of a in s3://bucket/p failed: the key is taken"):
        await store.put("a", b"other")
    with pytest.raises(ObjectExists, match="publishing of b"):
        await store.copy_if_absent("a", "b")
    assert await store.get("b") == b"second"


async def test_an_object_that_is_not_there_is_told_with_the_operation_and_the_store() -> None:
    store = cloud_store(ObstoreMemory())
    with pytest.raises(ObjectNotFound, match="head of a in s3://bucket/p failed: there is no such object"):
        await store.head("a")
    with pytest.raises(ObjectNotFound, match="get of a"):
        await store.get_range("a", 0, 5)


async def test_an_object_over_the_limit_is_refused_before_its_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = cloud_store(ObstoreMemory())
    await store.put("a", b"0123456789")
    monkeypatch.setattr(checks, "MAX_REQUEST_BODY_BYTES", 9)
    with pytest.raises(LimitExceeded, match="object a"):
        await store.get("a")
    assert await store.get_range("a", 8, 2) == b"89"


async def test_a_prefix_is_any_beginning_of_a_key_and_not_only_a_folder() -> None:
    store = cloud_store(ObstoreMemory())
    keys = ["a", "ab", "a/b", "a/bc", "a/c", "b"]
    for key in keys:
        await store.put(key, b"")
    for prefix in ("", "a", "a/", "a/b", "ab", "c"):
        assert await all_keys(store, prefix) == sorted(key for key in keys if key.startswith(prefix)), prefix


async def test_a_listing_goes_on_page_by_page_and_stops_behind_its_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "MAX_LIST_PAGE", 2)
    store = cloud_store(ObstoreMemory())
    for key in ("a/1", "a/2", "a/3", "b/1", "b/2", "b/3"):
        await store.put(key, b"")
    first = await store._list_page("a/", None)
    assert ([info.key for info in first.objects], first.next_start_after) == (["a/1", "a/2"], "a/2")
    second = await store._list_page("a/", first.next_start_after)
    assert [info.key for info in second.objects] == ["a/3"]
    inner = await store._list_page("a/2", None)
    assert [info.key for info in inner.objects] == ["a/2"]
    assert inner.next_start_after is None, "what follows does not begin with the prefix"
    assert await all_keys(store) == ["a/1", "a/2", "a/3", "b/1", "b/2", "b/3"]


async def test_an_error_of_the_network_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise OSError("error sending request: ConnectionReset")

    monkeypatch.setattr(obstore, "delete_async", broken)
    store = cloud_store(ObstoreMemory())
    with pytest.raises(StoreUnavailable, match="delete of 2 objects in s3://bucket/p failed: no answer: connection"):
        await store.delete(["a", "b"])


@given(st.text(_KEY_CHARACTERS, min_size=1, max_size=4), st.text(_KEY_CHARACTERS, max_size=3))
def test_a_listing_begins_before_every_key_with_its_prefix(prefix: str, rest: str) -> None:
    below = _just_below(prefix)
    assert below < prefix + rest
    assert not below.startswith(prefix)
