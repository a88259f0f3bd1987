"""Static keys and the region of a profile in ~/.aws, which obstore does not read itself.

Only what stands there in plain: profiles that assume a role or sign on elsewhere need a tool that exports AWS_*
variables. Reads two small files; keeps nothing.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamhouse.core.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsProfile:
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None


def read_profile(name: str | None, environ: Mapping[str, str]) -> AwsProfile:
    """The named profile, else AWS_PROFILE, else "default". Only a profile that was named must exist."""
    wanted = name or environ.get("AWS_PROFILE")
    profile = wanted or "default"
    credentials = _section(_file(environ, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), profile)
    config = _section(
        _file(environ, "AWS_CONFIG_FILE", "config"), profile if profile == "default" else f"profile {profile}"
    )
    found = {**config, **credentials}
    if wanted and not found:
        raise InvalidSetting(
            f"there is no AWS profile {wanted!r} in ~/.aws", hint="name another, or set AWS_* variables"
        )
    if wanted and "aws_access_key_id" not in found:
        raise InvalidSetting(
            f"the AWS profile {wanted!r} holds no access key",
            hint="profiles with roles or single sign-on are not read; export AWS_ACCESS_KEY_ID and its companions",
        )
    return AwsProfile(
        access_key_id=found.get("aws_access_key_id"),
        secret_access_key=found.get("aws_secret_access_key"),
        session_token=found.get("aws_session_token"),
        region=found.get("region"),
    )


def _file(environ: Mapping[str, str], variable: str, name: str) -> Path:
    home = Path(environ.get("HOME", "/nonexistent"))
    return Path(environ[variable]) if environ.get(variable) else home / ".aws" / name


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise InvalidSetting(f"cannot read {path}: {error}") from error
    return dict(parser[name]) if parser.has_section(name) else {}
