"""What settings need to know of URLs: their scheme, a local path inside them, and how to show one without its secrets.

    file:///var/lib/streamhouse/objects          sqlite:///var/lib/streamhouse/metadata.db
    postgresql://user:secret@host/db             s3://bucket/prefix

A local URL has three slashes and an absolute, percent-encoded path. Nothing here opens anything.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from streamhouse.core.errors import InvalidSetting

MASK: Final = "********"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_USERINFO: Final = re.compile(r"://([^:@]*):(.*)@", re.DOTALL)
_SECRET_PARAMETER: Final = re.compile(
    r"([?&;][^=&;#]*(?:pass|secret|token|key|credential|signature|sig)[^=&;#]*=)([^&;#]*)", re.IGNORECASE
)


def scheme_of(url: str) -> str:
    """Lower case; empty when there is none."""
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def mask_url(url: str) -> str:
    """The URL with its password, and any query parameter that looks like a secret, blotted out.

    It works on the text, not on a parsed URL, because a mistyped URL must not leak either; a password may hold '@' or
    '/' unescaped, so everything from the first ':' after '//' to the last '@' goes.
    """
    without_password = _USERINFO.sub(rf"://\1:{MASK}@", url)
    return _SECRET_PARAMETER.sub(rf"\1{MASK}", without_password)


def local_path(url: str) -> PurePosixPath:
    """The absolute path inside a ``file:`` or ``sqlite:`` URL."""
    parts = urlsplit(url)
    path = PurePosixPath(unquote(parts.path))
    if parts.netloc or parts.query or parts.fragment or not path.is_absolute() or ".." in path.parts:
        raise InvalidSetting(
            f"{mask_url(url)!r} names no absolute local path",
            hint=f"write {parts.scheme}:// and an absolute path without '..', such as {parts.scheme}:///var/lib/x",
        )
    return path
