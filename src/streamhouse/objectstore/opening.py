"""Opens the object store of a URL.

    file:///var/lib/streamhouse/objects      a local directory, durable
    s3://bucket/prefix                       S3 and what speaks it
    gs://bucket/prefix    az://container/prefix    as obstore finds their credentials and account in the environment

S3's settings come from the options, else from AWS_* variables, else from a profile in ~/.aws, else (credentials only)
from the container or instance. Opening sends nothing: ``probe.check_store`` finds out whether the store answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from streamhouse.core.clock import Clock
from streamhouse.core.errors import InvalidSetting
from streamhouse.core.randomness import Randomness
from streamhouse.core.urls import local_path, mask_url, scheme_of
from streamhouse.objectstore.aws_profile import read_profile
from streamhouse.objectstore.checks import is_key
from streamhouse.objectstore.cloud import Client, CloudStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.local import LocalStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CREDENTIAL_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_BODY_TIMEOUT: Final = timedelta(minutes=10)  # a backstop for the largest body; retries.py gives each try its own
_PART_TIMEOUT: Final = timedelta(minutes=2)  # a part is small, but joining thousands of them takes the server a while


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What a URL cannot say. All of it is for S3 but the last two, which are for a local directory."""

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None  # None: with an endpoint of one's own yes, on AWS no
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    create: bool = True  # make a missing one
    direct_io: bool = True  # large objects past the page cache


async def open_store(
    url: str,
    *,
    clock: Clock,
    randomness: Randomness,
    options: StoreOptions | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ObjectStore:
    options = options or StoreOptions()
    match scheme_of(url):
        case "file":
            root = Path(local_path(url))
            return await LocalStore.open(
                root, clock=clock, randomness=randomness, create=options.create, direct_io=options.direct_io
            )
        case "s3" | "gs" | "az" as scheme:
            return _open_cloud(scheme, url, options, environ, clock=clock, randomness=randomness)
    raise InvalidSetting(
        f"{mask_url(url)!r} is not the URL of an object store",
        hint="use file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix",
    )


def _open_cloud(
    scheme: str, url: str, options: StoreOptions, environ: Mapping[str, str], *, clock: Clock, randomness: Randomness
) -> CloudStore:
    parts = urlsplit(url)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    if not _BUCKET.fullmatch(bucket) or parts.query or parts.fragment or (prefix and not is_key(prefix)):
        raise InvalidSetting(
            f"{mask_url(url)!r} is not a bucket and prefix",
            hint=f"write {scheme}://bucket or {scheme}://bucket/prefix; credentials go into options or environment",
        )
    try:
        client = _client(scheme, bucket, options, environ, _BODY_TIMEOUT, retries=0)
        retrying = _client(scheme, bucket, options, environ, _PART_TIMEOUT, retries=5)
    except (BaseError, ValueError) as error:
        raise InvalidSetting(f"cannot open {url}: {str(error).splitlines()[0]}") from error
    return CloudStore(
        client=client,
        retrying=retrying,
        url=f"{scheme}://{bucket}/{prefix}".rstrip("/"),
        prefix=f"{prefix}/" if prefix else "",
        clock=clock,
        randomness=randomness,
    )


def _client(
    scheme: str, bucket: str, options: StoreOptions, environ: Mapping[str, str], timeout: timedelta, *, retries: int
) -> Client:
    http: ClientConfig = {"connect_timeout": timedelta(seconds=5), "timeout": timeout}
    again: RetryConfig = {"max_retries": retries, "retry_timeout": timedelta(minutes=1)}
    if scheme == "gs":
        return GCSStore(bucket, client_options=http, retry_config=again)
    if scheme == "az":
        return AzureStore(bucket, client_options=http, retry_config=again)
    endpoint = options.endpoint_url or _first(environ, _ENDPOINT_VARIABLES)
    if endpoint:
        http["allow_http"] = endpoint.startswith("http://")
    return S3Store(bucket, config=s3_config(bucket, options, environ), client_options=http, retry_config=again)


def s3_config(bucket: str, options: StoreOptions, environ: Mapping[str, str]) -> S3Config:
    """obstore's settings; what is left out it takes from AWS_* variables, the container or the instance itself."""
    config: S3Config = {"conditional_put": "etag", "copy_if_not_exists": "multipart"}
    endpoint = (options.endpoint_url or _first(environ, _ENDPOINT_VARIABLES) or "").rstrip("/")
    path_style = bool(endpoint) if options.path_style is None else options.path_style
    config["virtual_hosted_style_request"] = not path_style
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path:
            raise InvalidSetting(f"{mask_url(endpoint)!r} is not an S3 endpoint", hint="write http://host:port")
        # obstore wants the bucket in the endpoint's own host name then.
        config["endpoint"] = endpoint if path_style else f"{parts.scheme}://{bucket}.{parts.netloc}"
    if (options.access_key_id is None) != (options.secret_access_key is None):
        raise InvalidSetting("an access key and its secret must be given together")
    given = options.access_key_id is not None or _first(environ, _CREDENTIAL_VARIABLES)
    profile = read_profile(options.profile, environ) if options.profile or not given else None
    keys = options if options.access_key_id is not None else profile
    if keys is not None and keys.access_key_id and keys.secret_access_key:
        config["access_key_id"] = keys.access_key_id
        config["secret_access_key"] = keys.secret_access_key
        if keys.session_token:
            config["session_token"] = keys.session_token
    region = options.region or _first(environ, _REGION_VARIABLES) or (profile.region if profile else None)
    config["region"] = region or "us-east-1"
    return config


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)
