"""URLs, options and the environment give a store; a wrong one gives an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidSetting, StoreMisconfigured
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore.cloud import CloudStore
from streamhouse.objectstore.local import LocalStore
from streamhouse.objectstore.opening import StoreOptions, open_store, s3_config
from streamhouse.objectstore.probe import check_store

CLOCK = SystemClock()
RANDOMNESS = SystemRandomness()

NOTHING: dict[str, str] = {}


async def test_a_directory_is_opened_and_made(tmp_path: Path) -> None:
    root = tmp_path / "with space" / "objects"
    url = f"file://{tmp_path}/with%20space/objects"
    async with await open_store(url, clock=CLOCK, randomness=RANDOMNESS) as store:
        assert isinstance(store, LocalStore)
        assert store.url == url
        await check_store(store, clock=CLOCK, randomness=RANDOMNESS)
        await store.put("a", b"1")
    assert (root / "a").read_bytes() == b"1"
    async with await open_store(url, clock=CLOCK, randomness=RANDOMNESS) as store:
        assert await store.get("a") == b"1"


async def test_a_missing_directory_is_refused_if_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured):
        await open_store(
            f"file://{tmp_path}/none", clock=CLOCK, randomness=RANDOMNESS, options=StoreOptions(create=False)
        )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket/p", "gs://bucket/p"),
    ],
)
async def test_a_bucket_is_opened_without_a_word_to_the_server(url: str, shown: str) -> None:
    options = StoreOptions(endpoint_url="http://127.0.0.1:1", access_key_id="k", secret_access_key="s")
    async with await open_store(url, clock=CLOCK, randomness=RANDOMNESS, options=options, environ=NOTHING) as store:
        assert isinstance(store, CloudStore)
        assert store.url == shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        "objects",
        "/var/lib/objects",
        "ftp://host/x",
        "file://relative/path",
        "file:///a/../b",
        "memory://",
        "s3://",
        "s3:///prefix",
        "s3://UPPER",
        "s3://key:secret@bucket/p",
        "s3://bucket/a//b",
        "s3://bucket/a b",
        "s3://bucket/../x",
        "s3://bucket?secret=hidden",
    ],
)
async def test_a_url_that_is_none_is_refused_with_a_hint_and_without_its_secrets(url: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        await open_store(url, clock=CLOCK, randomness=RANDOMNESS, environ=NOTHING)
    assert caught.value.hint
    assert "key:secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_the_bucket_goes_into_the_path_on_an_endpoint_of_ones_own_and_into_the_host_on_aws() -> None:
    aws = s3_config("b-b", StoreOptions(), NOTHING)
    assert aws["virtual_hosted_style_request"] is True
    assert "endpoint" not in aws
    own = s3_config("b-b", StoreOptions(endpoint_url="http://host:9000/"), NOTHING)
    assert (own["endpoint"], own["virtual_hosted_style_request"]) == ("http://host:9000", False)
    hosted = s3_config("b-b", StoreOptions(endpoint_url="https://s3.host", path_style=False), NOTHING)
    assert (hosted["endpoint"], hosted["virtual_hosted_style_request"]) == ("https://b-b.s3.host", True)
    assert s3_config("b-b", StoreOptions(path_style=True), NOTHING)["virtual_hosted_style_request"] is False


def test_options_come_before_the_environment_and_that_before_the_profile(tmp_path: Path) -> None:
    aws = tmp_path / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text(
        "[default]\naws_access_key_id = fromfile\naws_secret_access_key = s1\n"
        "[work]\naws_access_key_id = atwork\naws_secret_access_key = s%2\naws_session_token = t2\n"
    )
    (aws / "config").write_text("[default]\nregion = eu-north-1\n[profile work]\nregion = eu-south-1\n")
    home = {"HOME": str(tmp_path)}
    variables = {**home, "AWS_ACCESS_KEY_ID": "fromenv", "AWS_SECRET_ACCESS_KEY": "s3", "AWS_REGION": "ap-east-1"}
    given = StoreOptions(access_key_id="given", secret_access_key="s4", region="us-west-1")

    assert s3_config("b-b", given, variables)["access_key_id"] == "given"
    assert s3_config("b-b", given, variables)["region"] == "us-west-1"
    from_env = s3_config("b-b", StoreOptions(), variables)
    assert "access_key_id" not in from_env, "obstore reads the environment itself"
    assert from_env["region"] == "ap-east-1"
    default = s3_config("b-b", StoreOptions(), home)
    assert (default["access_key_id"], default["region"]) == ("fromfile", "eu-north-1")
    for work in (
        s3_config("b-b", StoreOptions(profile="work"), home),
        s3_config("b-b", StoreOptions(), {**home, "AWS_PROFILE": "work"}),
    ):
        assert (work["access_key_id"], work["secret_access_key"], work["session_token"]) == ("atwork", "s%2", "t2")
        assert work["region"] == "eu-south-1"
    assert s3_config("b-b", StoreOptions(), NOTHING)["region"] == "us-east-1"
    assert "access_key_id" not in s3_config("b-b", StoreOptions(), {**home, "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"})


@pytest.mark.parametrize("endpoint", ["host:9000", "ftp://host", "http://", "http://host/path"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidSetting, match="endpoint"):
        s3_config("b-b", StoreOptions(endpoint_url=endpoint), NOTHING)


def test_half_a_credential_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="together"):
        s3_config("b-b", StoreOptions(access_key_id="k"), NOTHING)


def test_options_do_not_show_their_secrets() -> None:
    options = StoreOptions(access_key_id="k", secret_access_key="sesame", session_token="sesame")
    assert "sesame" not in repr(options)
