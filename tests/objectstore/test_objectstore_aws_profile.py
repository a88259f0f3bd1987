"""What is read from a profile in ~/.aws, in which order, and which profile must be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.objectstore.aws_profile import AwsProfile, read_profile

CREDENTIALS = """
[default]
aws_access_key_id = K1
aws_secret_access_key = S1
[work]
aws_access_key_id = K2
aws_secret_access_key = 100%secret
aws_session_token = T2
region = from-credentials
"""
CONFIG = """
[default]
region = eu-north-1
[profile work]
region = eu-south-1
[work]
region = no-profile
[profile sso]
sso_session = mine
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return {"HOME": str(tmp_path)}


def test_without_a_name_the_default_profile_is_read(home: dict[str, str]) -> None:
    assert read_profile(None, home) == AwsProfile(
        access_key_id="K1", secret_access_key="S1", session_token=None, region="eu-north-1"
    )


def test_a_name_comes_before_the_environment_and_that_before_the_default(home: dict[str, str]) -> None:
    assert read_profile(None, {**home, "AWS_PROFILE": "work"}).access_key_id == "K2"
    assert read_profile("default", {**home, "AWS_PROFILE": "work"}).access_key_id == "K1"


def test_the_credentials_file_comes_before_the_config_and_a_percent_sign_is_a_character(home: dict[str, str]) -> None:
    work = read_profile("work", home)
    assert (work.region, work.secret_access_key, work.session_token) == ("from-credentials", "100%secret", "T2")


def test_a_section_of_the_config_counts_only_as_a_profile(home: dict[str, str]) -> None:
    credentials = Path(home["HOME"]) / ".aws" / "credentials"
    credentials.write_text(CREDENTIALS.replace("region = from-credentials\n", ""))
    assert read_profile("work", home).region == "eu-south-1"


def test_files_may_lie_elsewhere(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("[default]\naws_access_key_id = K3\n")
    assert read_profile(None, {**home, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "mine")}).access_key_id == "K3"
    (tmp_path / "config").write_text("[default]\nregion = r\n")
    assert read_profile(None, {"AWS_CONFIG_FILE": str(tmp_path / "config")}) == AwsProfile(region="r")


def test_only_a_profile_that_was_named_must_exist(home: dict[str, str]) -> None:
    assert read_profile(None, {}) == AwsProfile()
    with pytest.raises(InvalidSetting, match="no AWS profile 'none'"):
        read_profile("none", home)
    with pytest.raises(InvalidSetting, match="no AWS profile 'none'"):
        read_profile(None, {**home, "AWS_PROFILE": "none"})


def test_a_named_profile_without_keys_is_refused_and_the_hint_says_what_to_export(home: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match="'sso' holds no access key") as refused:
        read_profile("sso", home)
    assert "AWS_ACCESS_KEY_ID" in str(refused.value.hint)


@pytest.mark.parametrize("content", [b"no section\n", b"[default]\nregion = \xff\n", b"[a]\nx = 1\nx = 2\n"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "credentials").write_bytes(content)
    with pytest.raises(InvalidSetting, match=f"cannot read {tmp_path}/credentials"):
        read_profile(None, {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")})


def test_a_profile_does_not_show_its_secrets() -> None:
    assert "sesame" not in repr(AwsProfile(access_key_id="k", secret_access_key="sesame", session_token="sesame"))
