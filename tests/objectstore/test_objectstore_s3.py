"""What only a real S3 server can show: refusals in one line, lost replies, parts left or not left behind."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import hmac
import http.client
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from meddling_proxy import Meddling, MeddlingProxy, meddling_proxy

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import (
    ObjectExists,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.opening import StoreOptions, open_store
from streamhouse.objectstore.probe import check_store
from streamhouse.objectstore.retries import RetryingStore, RetryPolicy
from streamhouse.testing.services import S3Service

CLOCK = SystemClock()
RANDOMNESS = SystemRandomness()

LARGE = bytes(range(256)) * (17 * MIB // 256)


async def opened(url: str, options: StoreOptions) -> ObjectStore:
    return await open_store(url, clock=CLOCK, randomness=RANDOMNESS, options=options)


@asynccontextmanager
async def through_proxy(
    url: str, options: StoreOptions, script: dict[str, list[Meddling]]
) -> AsyncIterator[tuple[ObjectStore, MeddlingProxy]]:
    """``script``: for requests whose "METHOD target" matches the pattern, what happens to each in turn."""

    def decide(method: str, target: str) -> Meddling:
        for pattern, meddlings in script.items():
            if meddlings and re.search(pattern, f"{method} {target}"):
                return meddlings.pop(0)
        return Meddling.PASS

    assert options.endpoint_url is not None
    async with meddling_proxy(options.endpoint_url, decide) as proxy:
        yield await opened(url, replace(options, endpoint_url=proxy.url)), proxy


def with_retries(store: ObjectStore) -> RetryingStore:
    return RetryingStore(
        store, clock=CLOCK, randomness=RANDOMNESS, policy=RetryPolicy(first_pause_ms=1, longest_pause_ms=5)
    )


def unfinished_uploads(service: S3Service, url: str) -> list[str]:
    """Keys of multipart uploads that were begun and neither completed nor aborted."""
    bucket, prefix = urlsplit(url).netloc, urlsplit(url).path.strip("/")
    host = urlsplit(service.endpoint_url).netloc
    stamp = datetime.datetime.fromtimestamp(CLOCK.wall_ms() / 1000, tz=datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(b"").hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    names, lines = ";".join(headers), "".join(f"{name}:{value}\n" for name, value in headers.items())
    scope = f"{stamp[:8]}/{service.region}/s3/aws4_request"
    request = hashlib.sha256(f"GET\n/{bucket}\nuploads=\n{lines}\n{names}\n{digest}".encode()).hexdigest()
    key = f"AWS4{service.secret_key}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{request}"):
        key = hmac.digest(key, part.encode(), "sha256")
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={service.access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    )
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.request("GET", f"/{bucket}?uploads=", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    found = re.findall(r"<Key>([^<]*)</Key>", answer.read().decode())
    connection.close()
    return [key for key in found if key.startswith(prefix)]


# Refusals.


async def test_an_unknown_access_key_is_one_clear_line(s3_url: str, s3_options: StoreOptions) -> None:
    store = await opened(s3_url, replace(s3_options, access_key_id="nobody"))
    for call in (store.put("a", b"1"), store.get("a"), store.head("a"), store.delete(["a"]), store.list_page()):
        with pytest.raises(StoreDenied) as caught:
            await call
        assert s3_url in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(StoreDenied, match="AWS_ACCESS_KEY_ID"):
        await store.get("a")


async def test_a_wrong_secret_is_one_clear_line(s3_url: str, s3_options: StoreOptions) -> None:
    store = await opened(s3_url, replace(s3_options, secret_access_key="guessed-wrongly"))
    with pytest.raises(StoreDenied, match="AWS_SECRET_ACCESS_KEY") as caught:
        await store.put("a", b"1")
    assert "guessed-wrongly" not in str(caught.value)


async def test_a_missing_bucket_is_one_clear_line(s3_options: StoreOptions) -> None:
    store = await opened(f"s3://no-such-{RANDOMNESS.uuid().hex}", s3_options)
    with pytest.raises(StoreMisconfigured, match=r"NoSuchBucket.*create the bucket"):
        await store.get("a")
    with pytest.raises(StoreMisconfigured, match="NoSuchBucket"):
        await store.list_page()


async def test_a_server_that_is_down_is_one_clear_line(s3_url: str, s3_options: StoreOptions) -> None:
    store = await opened(s3_url, replace(s3_options, endpoint_url="http://127.0.0.1:1"))
    with pytest.raises(StoreUnavailable, match="no answer: connection refused") as caught:
        await store.get("a")
    assert "\n" not in str(caught.value)


# Lost and meddled requests.


async def test_r11_a_put_whose_reply_was_lost_is_found_to_be_ours(s3_url: str, s3_options: StoreOptions) -> None:
    lost = {r"^PUT": [Meddling.LOSE_REPLY, Meddling.LOSE_REPLY]}
    async with through_proxy(s3_url, s3_options, lost) as (store, proxy):
        await with_retries(store).put("a/b", b"mine")
        assert [method for method, _ in proxy.seen] == ["PUT", "PUT", "PUT", "HEAD", "GET"]
        assert await store.get("a/b") == b"mine"


async def test_r11_a_put_that_met_anothers_object_is_refused_after_a_lost_request(
    s3_url: str, s3_options: StoreOptions
) -> None:
    await (await opened(s3_url, s3_options)).put("a/b", b"them")
    async with through_proxy(s3_url, s3_options, {r"^PUT": [Meddling.LOSE_REQUEST]}) as (store, _):
        with pytest.raises(ObjectExists):
            await with_retries(store).put("a/b", b"mine")
        assert await store.get("a/b") == b"them"


async def test_requests_lost_refused_and_cut_are_repeated(s3_url: str, s3_options: StoreOptions) -> None:
    problem = [Meddling.ANSWER_503, Meddling.LOSE_REQUEST, Meddling.LOSE_REPLY]
    script = {
        r"^PUT": [Meddling.ANSWER_503, Meddling.LOSE_REQUEST],
        r"^GET .*/a/b": [*problem, Meddling.CUT_REPLY],
        r"^HEAD": list(problem),
        r"^GET .*list-type": [*problem, Meddling.CUT_REPLY],
        r"^POST .*delete": list(problem),
    }
    async with through_proxy(s3_url, s3_options, script) as (plain, _):
        store = with_retries(plain)
        await store.put("a/b", b"mine" * 1000)
        assert await store.get("a/b") == b"mine" * 1000
        assert (await store.head("a/b")).size_bytes == 4000
        assert [info.key async for info in store.list()] == ["a/b"]
        await store.delete(["a/b"])
        assert [info.key async for info in store.list()] == []
    assert all(not left for left in script.values())


async def test_a_cut_body_is_never_taken_for_whole(s3_url: str, s3_options: StoreOptions) -> None:
    await (await opened(s3_url, s3_options)).put("a", b"1234567890" * 100)
    async with through_proxy(s3_url, s3_options, {r"^GET": [Meddling.CUT_REPLY] * 2}) as (store, _):
        for call in (store.get("a"), store.get_range("a", 0, 500)):
            with pytest.raises(StoreUnavailable):
                await call


async def test_nothing_is_repeated_without_the_retries(s3_url: str, s3_options: StoreOptions) -> None:
    async with through_proxy(s3_url, s3_options, {"": [Meddling.ANSWER_503] * 6}) as (store, proxy):
        for call in (store.put("a", b""), store.get("a"), store.head("a"), store.delete(["a"]), store.list_page()):
            with pytest.raises(StoreUnavailable, match="503"):
                await call
        assert len(proxy.seen) == 5


# Multipart.


async def test_a_lost_part_is_sent_again(s3_url: str, s3_options: StoreOptions, s3_service: S3Service) -> None:
    script = {"partNumber=2": [Meddling.ANSWER_503, Meddling.LOSE_REPLY], "partNumber=1": [Meddling.LOSE_REQUEST]}
    async with through_proxy(s3_url, s3_options, script) as (store, _):
        async with await store.open_upload("up") as up:
            await up.write(LARGE)
            await up.complete()
        assert await store.get("up") == LARGE
    assert unfinished_uploads(s3_service, s3_url) == []


@pytest.mark.parametrize("pattern", ["partNumber=1", "partNumber=3"], ids=["first-part", "last-part"])
async def test_an_upload_whose_part_fails_for_good_leaves_no_parts(
    s3_url: str, s3_options: StoreOptions, s3_service: S3Service, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    script = {pattern: [Meddling.ANSWER_503] * 100}
    async with through_proxy(s3_url, s3_options, script) as (store, _):
        # The client that does not retry, so that the test need not wait for retries.
        monkeypatch.setattr(store, "retrying", store._client)  # type: ignore[attr-defined]
        async with await store.open_upload("up") as up:
            with pytest.raises(StoreError, match="503"):
                await write_and_complete(up)
        assert [info.key async for info in store.list()] == []
    assert unfinished_uploads(s3_service, s3_url) == []


async def write_and_complete(up) -> None:  # type: ignore[no-untyped-def]
    await up.write(LARGE[: 16 * MIB])
    await up.write(LARGE[16 * MIB :])
    await up.complete()


@pytest.mark.parametrize("pause_ms", [0, 1, 10, 40, 80, 150])
async def test_a_cancelled_upload_leaves_no_parts(
    s3_store: ObjectStore, s3_url: str, s3_service: S3Service, pause_ms: int
) -> None:
    async def forever() -> None:
        async with await s3_store.open_upload("up") as up:
            while True:
                await up.write(LARGE)

    task = asyncio.ensure_future(forever())
    await asyncio.sleep(pause_ms / 1000)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert unfinished_uploads(s3_service, s3_url) == []
    assert [info.key async for info in s3_store.list()] == []


async def test_an_upload_whose_joining_reply_was_lost_is_found_by_its_size(
    s3_url: str, s3_options: StoreOptions, s3_service: S3Service
) -> None:
    # Completing is not idempotent: the server answers the second try that there is no such upload.
    script = {r"POST .*upload-staging.*uploadId": [Meddling.LOSE_REPLY] * 10}
    async with through_proxy(s3_url, s3_options, script) as (store, _):
        async with await store.open_upload("up") as up:
            await up.write(LARGE)
            await up.complete()
        assert await store.get("up") == LARGE
        assert [info.key async for info in store.list()] == ["up"]
    assert unfinished_uploads(s3_service, s3_url) == []


async def test_r11_an_upload_whose_publishing_reply_was_lost_is_found_to_be_ours(
    s3_url: str, s3_options: StoreOptions, s3_service: S3Service
) -> None:
    script = {r"POST .*/up\?uploadId": [Meddling.LOSE_REPLY]}
    async with through_proxy(s3_url, s3_options, script) as (plain, proxy):
        store = with_retries(plain)
        async with await store.open_upload("up") as up:
            await up.write(LARGE)
            await up.complete()
        assert sum("/up?uploadId" in target for _, target in proxy.seen) >= 2
        assert await store.get("up") == LARGE
        assert [info.key async for info in store.list()] == ["up"]
    assert unfinished_uploads(s3_service, s3_url) == []


# The rest.


async def test_two_prefixes_of_a_bucket_do_not_see_each_other(s3_url: str, s3_options: StoreOptions) -> None:
    one, two = await opened(f"{s3_url}/x", s3_options), await opened(f"{s3_url}/x1", s3_options)
    await one.put("a", b"1")
    await two.put("a", b"2")
    assert [info.key async for info in one.list()] == [info.key async for info in two.list()] == ["a"]
    await one.delete(["a"])
    assert await two.get("a") == b"2"


async def test_a_server_that_lists_out_of_order_is_found_out(s3_store: ObjectStore, s3_service: S3Service) -> None:
    """SeaweedFS lists a folder before a file whose name continues the folder's; our own keys never do that."""
    names = ["a-b", "a/b", "a0"]
    for name in names:
        await s3_store.put(name, b"")
    if s3_service.kind == "SeaweedFS":
        with pytest.raises(StoreError, match="key order"):
            [info async for info in s3_store.list()]
    else:
        assert [info.key async for info in s3_store.list()] == names


async def test_the_probe_finds_nothing_wrong_and_leaves_nothing(s3_store: ObjectStore) -> None:
    await check_store(s3_store, clock=CLOCK, randomness=RANDOMNESS)
    assert [info async for info in s3_store.list()] == []


@pytest.mark.parametrize(
    ("pattern", "meddling", "match"),
    [
        ("^PUT .*store-probe/[^?]*$", Meddling.ALLOW_ALL, "put replace"),
        ("^POST .*uploadId", Meddling.FORGET_CONDITION, "upload replace"),
    ],
)
async def test_the_probe_finds_a_server_that_ignores_conditions(
    s3_url: str, s3_options: StoreOptions, pattern: str, meddling: Meddling, match: str
) -> None:
    script = {pattern: [meddling] * 10}
    async with through_proxy(s3_url, s3_options, script) as (store, _):
        with pytest.raises(StoreMisconfigured, match=match):
            await check_store(store, clock=CLOCK, randomness=RANDOMNESS)
        assert [info async for info in store.list()] == []


async def test_credentials_and_endpoint_come_from_the_environment(
    s3_service: S3Service, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_service.environment().items():
        monkeypatch.setenv(name, value)
    async with await open_store(s3_url, clock=CLOCK, randomness=RANDOMNESS) as store:
        await store.put("a", b"1")
        assert await store.get("a") == b"1"
