"""The errors of maintenance."""

from __future__ import annotations

from streamhouse.core.errors.base import StreamHouseError


class PassIncomplete(StreamHouseError):
    http_status = 503
    retriable = True
    default_hint = "nothing is lost; the next pass tries again"
