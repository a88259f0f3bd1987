"""Exit codes: stable numbers, derived from the error tree."""

from __future__ import annotations

import pytest

from streamhouse.cli.exit_codes import MEANINGS, ExitCode, exit_code_for
from streamhouse.core import errors

ERRORS = [
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.StreamHouseError)
]


def test_the_numbers_never_change() -> None:
    assert {each.name: each.value for each in ExitCode} == {
        "OK": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "NOT_FOUND": 3,
        "CONFLICT": 4,
        "UNAVAILABLE": 5,
        "CORRUPT": 6,
        "DENIED": 7,
        "TOO_NEW": 8,
        "ANOMALY": 9,
        "NOT_READY": 10,
        "DAMAGED": 11,
        "INTERRUPTED": 130,
        "CLOSED_PIPE": 141,
    }


def test_every_number_has_a_meaning_in_the_reference() -> None:
    assert set(MEANINGS) == set(ExitCode)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_exit_code_agrees_with_what_http_would_say(error: type[errors.StreamHouseError]) -> None:
    by_status = {400: ExitCode.USAGE, 403: ExitCode.DENIED, 404: ExitCode.NOT_FOUND, 409: ExitCode.CONFLICT}
    code = exit_code_for(error)
    assert code not in (ExitCode.OK, ExitCode.INTERRUPTED, ExitCode.CLOSED_PIPE)
    assert code == by_status.get(error.http_status, code)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StreamHouseError, ExitCode.FAILURE),
        (errors.UnknownSetting, ExitCode.USAGE),
        (errors.InvalidTopicName, ExitCode.USAGE),
        (errors.TopicNotFound, ExitCode.NOT_FOUND),
        (errors.TopicExists, ExitCode.CONFLICT),
        (errors.StaleEpoch, ExitCode.CONFLICT),
        (errors.StoreUnavailable, ExitCode.UNAVAILABLE),
        (errors.MetadataUnavailable, ExitCode.UNAVAILABLE),
        (errors.CorruptSegment, ExitCode.CORRUPT),
        (errors.StoreDenied, ExitCode.DENIED),
        (errors.SchemaTooNew, ExitCode.TOO_NEW),
        (errors.StoreError, ExitCode.FAILURE),
    ],
)
def test_the_nearest_class_up_the_tree_decides(error: type[errors.StreamHouseError], code: ExitCode) -> None:
    assert exit_code_for(error) is code
