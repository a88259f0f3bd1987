"""Where a table is, and the options by which pyarrow, deltalake and pyiceberg find it.

A location is ``file:///…`` or ``s3://bucket/prefix``. On S3 the credentials and endpoint are those of StreamHouse's own
object store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow.fs as pafs

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.urls import local_path, scheme_of
from streamhouse.objectstore.opening import StoreOptions

_SCHEMES: Final = ("file", "s3")
_UNUSABLE: Final = frozenset("%?#\n\r\0")
"""Some of the formats' libraries cannot open a path with one of these characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    url: str
    """The URL, without a slash at its end."""
    options: StoreOptions

    @property
    def is_local(self) -> bool:
        return scheme_of(self.url) == "file"

    @property
    def path(self) -> str:
        """The path in the form that pyarrow's file systems take: /srv/orders, or bucket/orders."""
        return str(local_path(self.url)) if self.is_local else self.url.split("://", 1)[1]

    def filesystem(self) -> pafs.FileSystem:
        if self.is_local:
            return pafs.LocalFileSystem()
        given = self.options
        chosen: dict[str, Any] = {
            "access_key": given.access_key_id,
            "secret_key": given.secret_access_key,
            "region": given.region,
            "endpoint_override": given.endpoint_url,
            "force_virtual_addressing": given.path_style is False,
        }
        return pafs.S3FileSystem(**{name: value for name, value in chosen.items() if value is not None})

    def delta_options(self) -> dict[str, str]:
        if self.is_local:
            return {}
        given = self.options
        path_style = given.path_style if given.path_style is not None else given.endpoint_url is not None
        chosen = {
            "AWS_ACCESS_KEY_ID": given.access_key_id,
            "AWS_SECRET_ACCESS_KEY": given.secret_access_key,
            "AWS_REGION": given.region,
            "AWS_ENDPOINT_URL": given.endpoint_url,
            "AWS_ALLOW_HTTP": "true" if (given.endpoint_url or "").startswith("http:") else None,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": str(not path_style).lower(),
            "conditional_put": "etag",
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def iceberg_options(self) -> dict[str, str]:
        if self.is_local:
            return {}
        given = self.options
        chosen = {
            "s3.access-key-id": given.access_key_id,
            "s3.secret-access-key": given.secret_access_key,
            "s3.region": given.region,
            "s3.endpoint": given.endpoint_url,
            "s3.force-virtual-addressing": str(given.path_style is False).lower(),
        }
        return {name: value for name, value in chosen.items() if value is not None}


def parse_location(text: str, options: StoreOptions, *, working_dir: Path | None = None) -> Location:
    """A URL, or a path on this machine. Raises InvalidSetting."""
    url = text.strip()
    if "://" not in url:
        absolute = ((working_dir or Path.cwd()) / url).resolve()
        url = f"file://{quote(str(absolute))}"
    if scheme_of(url) not in _SCHEMES:
        raise InvalidSetting(
            f"a table cannot be in {text[:80]!r}", hint="give a path of this machine, or s3://bucket/prefix"
        )
    url = url.rstrip("/")
    if scheme_of(url) == "file":
        if set(str(local_path(url))) & _UNUSABLE:
            raise InvalidSetting(f"a table cannot be in {text[:80]!r}", hint="use a path without % ? # and line breaks")
    elif not url.removeprefix("s3:").strip("/"):
        raise InvalidSetting(f"{text!r} names no bucket")
    return Location(url=url, options=options)


def check_apart(location: Location, others: Iterable[tuple[str, str]]) -> None:
    """Raises InvalidSetting if the location overlaps with another. ``others``: what each is, and its URL."""
    hint = "give the table a directory, or a prefix, of its own"
    if not location.is_local and "/" not in location.path.strip("/"):
        raise InvalidSetting(f"{location.url} is a whole bucket", hint=hint)
    if location.is_local and not location.path.strip("/"):
        raise InvalidSetting("a table cannot be the whole disk", hint=hint)
    mine = f"{location.url}/"
    for what, url in others:
        theirs = f"{url.rstrip('/')}/"
        if mine.startswith(theirs) or theirs.startswith(mine):
            raise InvalidSetting(f"a table in {location.url} would overlap with {what} in {url}", hint=hint)
