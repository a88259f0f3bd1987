"""Where a table may be, how each library is told of it, and that no two tables overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.objectstore.opening import StoreOptions
from streamhouse.spark.tables.location import Location, check_apart, parse_location


def test_a_table_has_a_place_of_its_own() -> None:
    def place(text: str) -> Location:
        return parse_location(text, StoreOptions())

    others = [("the object store", "file:///srv/data/objects"), ("the table a", "s3://lake/a")]
    for good in ("/srv/data/tables/orders", "/srv/data/objects2", "s3://lake/b", "s3://lake/ab"):
        check_apart(place(good), others)
    for bad in (
        "/",
        "/srv/data",
        "/srv/data/objects",
        "/srv/data/objects/x",
        "s3://lake",
        "s3://lake/",
        "s3://lake/a/b",
    ):
        with pytest.raises(InvalidSetting):
            check_apart(place(bad), others)
    for bad in ("/srv/50%", "/srv/a#b", "gs://x/y", "s3://"):
        with pytest.raises(InvalidSetting):
            place(bad)


def test_a_path_becomes_a_url_and_back(tmp_path: Path) -> None:
    found = parse_location("der große See", StoreOptions(), working_dir=tmp_path)
    assert found.url == f"file://{tmp_path}/der%20gro%C3%9Fe%20See"
    assert found.path == f"{tmp_path}/der große See"
    assert parse_location(f"{found.url}//", StoreOptions()).url == found.url
    assert parse_location("s3://lake/orders/", StoreOptions()).path == "lake/orders"


def test_a_local_table_needs_no_options(tmp_path: Path) -> None:
    local = parse_location(str(tmp_path), StoreOptions(access_key_id="k", secret_access_key="s"))
    assert (local.is_local, local.delta_options(), local.iceberg_options()) == (True, {}, {})


@pytest.mark.parametrize(
    ("options", "virtual_delta", "virtual_iceberg"),
    [
        (StoreOptions(), "true", "false"),
        (StoreOptions(endpoint_url="http://host:9000"), "false", "false"),
        (StoreOptions(endpoint_url="https://host", path_style=False), "true", "true"),
        (StoreOptions(path_style=True), "false", "false"),
    ],
)
def test_each_library_is_told_how_the_bucket_is_addressed(
    options: StoreOptions, virtual_delta: str, virtual_iceberg: str
) -> None:
    place = parse_location("s3://lake/orders", options)
    assert place.delta_options()["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] == virtual_delta
    assert place.iceberg_options()["s3.force-virtual-addressing"] == virtual_iceberg


def test_credentials_reach_every_library_and_plain_http_only_where_it_is_named() -> None:
    options = StoreOptions(endpoint_url="http://h:1", access_key_id="k", secret_access_key="s", region="r")
    place = parse_location("s3://lake/orders", options)
    delta, iceberg = place.delta_options(), place.iceberg_options()
    assert (delta["AWS_ACCESS_KEY_ID"], delta["AWS_SECRET_ACCESS_KEY"], delta["AWS_ALLOW_HTTP"]) == ("k", "s", "true")
    assert delta["conditional_put"] == "etag", "without it two writers could both commit"
    assert (iceberg["s3.endpoint"], iceberg["s3.region"]) == ("http://h:1", "r")
    assert "AWS_ALLOW_HTTP" not in parse_location("s3://lake/x", StoreOptions()).delta_options()


def test_an_overlap_names_what_is_there() -> None:
    inside = parse_location("s3://lake/a/b", StoreOptions())
    with pytest.raises(InvalidSetting, match="would overlap with the table a in s3://lake/a"):
        check_apart(inside, [("the table a", "s3://lake/a/")])
