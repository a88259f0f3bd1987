"""Which StreamHouse a Spark job speaks of: options under any spelling, before the environment, and refused if empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamhouse.core.errors import ConfigError, InvalidSetting
from streamhouse.spark.address import ADDRESS_OPTIONS, is_address_option, plain_name, resolve_address


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """What a StreamHouse of one machine has, as far as Spark looks."""
    made = tmp_path / "data"
    (made / "objects").mkdir(parents=True)
    (made / "metadata.db").touch()
    return made


def test_a_data_directory_names_both_stores(data_dir: Path) -> None:
    found = resolve_address({"dataDir": str(data_dir)}, environ={})
    assert found.metadata_url.endswith(f"{data_dir}/metadata.db")
    assert found.store_url == f"file://{data_dir}/objects"
    assert found.store.create is False, "a mistyped place must not come into being"


@pytest.mark.parametrize("name", ["metadataUrl", "metadata.url", "METADATA_URL", "metadata-url"])
def test_an_option_may_be_spelled_as_everywhere(name: str, data_dir: Path) -> None:
    assert plain_name(name) == "metadataurl"
    assert is_address_option(name)
    found = resolve_address({"dataDir": str(data_dir), name: "postgresql://db/x"}, environ={})
    assert found.metadata_url == "postgresql://db/x"


def test_options_come_before_the_environment_and_others_are_not_ours(data_dir: Path) -> None:
    environ = {
        "STREAMHOUSE_DATA_DIR": str(data_dir),
        "STREAMHOUSE_STORE_URL": "s3://from-env/x",
        "STREAMHOUSE_STORE_REGION": "eu-north-1",
    }
    options = {"storeUrl": "s3://from-option/x", "subscribe": "orders", "storeRequestTimeout": "7s"}
    found = resolve_address(options, environ=environ)
    assert (found.store_url, found.store.region, found.request_timeout_ms) == (
        "s3://from-option/x",
        "eu-north-1",
        7_000,
    )
    assert not is_address_option("subscribe")


def test_a_config_file_can_be_named(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'data_dir = "{data_dir}"\n[store]\nregion = "r"\n')
    assert resolve_address({"config": str(tmp_path / "mine.toml")}, environ={}).store.region == "r"


def test_a_place_without_a_streamhouse_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=f"there is no StreamHouse in {tmp_path}/none") as refused:
        resolve_address({"dataDir": str(tmp_path / "none")}, environ={})
    assert "dataDir" in str(refused.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_metadata_without_its_objects_is_refused(data_dir: Path) -> None:
    (data_dir / "objects").rmdir()
    with pytest.raises(InvalidSetting, match=f"there are no objects of a StreamHouse in {data_dir}/objects"):
        resolve_address({"dataDir": str(data_dir)}, environ={})


def test_objects_in_the_memory_of_another_process_cannot_be_read(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="memory"):
        resolve_address({"dataDir": str(data_dir), "storeUrl": "memory://"}, environ={})


def test_an_address_does_not_show_its_passwords(data_dir: Path) -> None:
    options = {
        "dataDir": str(data_dir),
        "metadataUrl": "postgresql://me:sesame@db/x",
        "storeUrl": "s3://bucket/x",
        "storeAccessKeyId": "k",
        "storeSecretAccessKey": "sesame",
    }
    assert "sesame" not in repr(resolve_address(options, environ={}))
    assert {"dataDir", "config"} <= set(ADDRESS_OPTIONS)
