"""What the handlers say about themselves is what they registered, and nothing goes beyond Apache Kafka 4.2."""

from __future__ import annotations

import inspect
import re

import pytest

from streamhouse.gateway.kafka.api import Api, apis
from streamhouse.gateway.kafka.handlers import register_all
from streamhouse.gateway.kafka.wire.table import message_spec

register_all()

ISSUE_5 = {
    *(0, 1, 2, 21, 23),
    *(18, 3, 60, 75, 35, 61),
    *(19, 20, 37, 32, 33, 44),
    *(10, 11, 14, 12, 13, 8, 9, 47, 15, 16, 42, 69, 68),
    22,
    *(46, 45, 43, 48, 50, 74, 55, 66),
}


@pytest.mark.parametrize("api", apis().values(), ids=lambda api: str(api.key))
def test_a_handlers_header_names_its_api_and_versions(api: Api) -> None:
    module = inspect.getmodule(api.hot or api.cold)
    assert module is not None
    spec = message_spec(f"{api.key}.request")
    assert re.search(rf"\bapi_{api.key:02}_{spec.name}$", module.__name__)
    said = re.match(r"(\w+) \(?(\d+)\)?, versions? (\d+)(?:–(\d+))?", module.__doc__ or "")
    assert said is not None, "the header begins with the API's name, its key and its versions"
    name, key, low, high = said.groups()
    assert name.lower() == spec.name.replace("_", "")
    assert (int(key), int(low), int(high or low)) == (api.key, api.min_version, api.max_version)


@pytest.mark.parametrize("api", apis().values(), ids=lambda api: str(api.key))
def test_no_version_goes_beyond_the_table(api: Api) -> None:
    for kind in ("request", "response"):
        assert message_spec(f"{api.key}.{kind}").versions[-1] == api.max_version


def test_every_api_of_the_plan_is_there() -> None:
    assert set(apis()) >= ISSUE_5
    assert not set(apis()) & {71, 72}, "telemetry is not offered: clients would send it"
