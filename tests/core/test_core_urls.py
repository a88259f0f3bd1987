"""URLs are shown without their secrets, well-formed or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.urls import MASK, local_path, mask_url, scheme_of


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://user:pw@host/db", f"postgresql://user:{MASK}@host/db"),
        ("postgresql://user:p@ss@host/db", f"postgresql://user:{MASK}@host/db"),
        ("postgresql://user:p/w@host/db", f"postgresql://user:{MASK}@host/db"),
        ("postgresql://:pw@host/db", f"postgresql://:{MASK}@host/db"),
        ("postgresql://user@host:5432/db", "postgresql://user@host:5432/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        (
            "postgresql://host/db?sslpassword=pw&sslmode=require",
            f"postgresql://host/db?sslpassword={MASK}&sslmode=require",
        ),
        ("s3://bucket/p?aws_secret_access_key=pw#x", f"s3://bucket/p?aws_secret_access_key={MASK}#x"),
        ("http://u:pw@[bad", f"http://u:{MASK}@[bad"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_secrets_in_a_url_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@given(st.text(alphabet=st.characters(exclude_characters="*", exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_no_password_shines_through(password: str) -> None:
    shown = mask_url(f"postgresql://user:{password}@host/db")
    assert shown == f"postgresql://user:{MASK}@host/db"


def test_schemes() -> None:
    assert scheme_of("PostgreSQL://x") == "postgresql"
    assert scheme_of("/just/a/path") == ""
    assert scheme_of("") == ""


def test_a_local_url_gives_its_decoded_path() -> None:
    assert str(local_path("file:///var/lib/a%20b")) == "/var/lib/a b"


@pytest.mark.parametrize(
    "url", ["file://host/x", "file://", "sqlite://x.db", "file:///a/../b", "file:///a?b=c", "file:///a#b"]
)
def test_a_local_url_without_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match="no absolute local path"):
        local_path(url)
