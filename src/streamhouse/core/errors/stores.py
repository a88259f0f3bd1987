"""The errors of the object store, the metadata store and the write-ahead log, and of writes that one of them delays."""

from __future__ import annotations

from streamhouse.core.errors.base import StreamHouseError


class StoreError(StreamHouseError):
    kafka_code = 56  # KAFKA_STORAGE_ERROR
    http_status = 503


class ObjectNotFound(StoreError):
    http_status = 404


class ObjectExists(StoreError):
    http_status = 409


class ReadPastEnd(StoreError):
    http_status = 416


class StoreUnavailable(StoreError):
    retriable = True
    default_hint = "check that the object store is up and reachable; the call may be repeated"


class StoreCredentialsMissing(StoreUnavailable):
    """No credentials in the settings or the environment, and none from the cloud's metadata service.

    Retriable, because that service may answer later. A start does not wait for it.
    """

    default_hint = "set store.access_key_id and store.secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class StoreDenied(StoreError):
    http_status = 403
    default_hint = "check the credentials and the bucket's policy"


class StoreMisconfigured(StoreError):
    http_status = 500
    default_hint = "check the store's URL, endpoint and region"


class MetadataError(StreamHouseError):
    kafka_code = 56  # KAFKA_STORAGE_ERROR
    http_status = 503


class MetadataUnavailable(MetadataError):
    retriable = True
    default_hint = "check that the metadata store is up and reachable; the call may be repeated"


class MetadataDenied(MetadataError):
    http_status = 403
    default_hint = "check the user, the password and the rights on the metadata store"


class MetadataMisconfigured(MetadataError):
    http_status = 500
    default_hint = "check the metadata URL"


class MetadataDamaged(MetadataError):
    http_status = 500
    default_hint = "restore it from a backup"


class SchemaTooNew(MetadataError):
    http_status = 500
    default_hint = "start the StreamHouse version that wrote it, or a newer one"


class MetadataTooOld(MetadataError):
    http_status = 500
    default_hint = "restore the newer metadata"


class DurabilityMismatch(MetadataError):
    http_status = 409
    default_hint = "start with the data directory that belongs to this metadata store, or drain it first"


class WalError(StreamHouseError):
    kafka_code = 56  # KAFKA_STORAGE_ERROR
    http_status = 503


class WalFailed(WalError):
    retriable = True  # at another agent, or after a restart of this process
    default_hint = "repair or replace the disk, then restart this process; nothing it acknowledged is lost"


class WalOutcomeUnknown(WalFailed):
    kafka_code = 20  # NOT_ENOUGH_REPLICAS_AFTER_APPEND


class BackPressureRejected(StreamHouseError):
    kafka_code = 19  # NOT_ENOUGH_REPLICAS
    http_status = 503
    retriable = True
    default_hint = "send again a little later"


class NotAcknowledged(StreamHouseError):
    kafka_code = 7  # REQUEST_TIMED_OUT
    http_status = 503
    retriable = True
    default_hint = "send again; an idempotent producer's batch is written once"
