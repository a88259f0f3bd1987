"""The error tree. Every failure that leaves a module is one of these.

    StreamHouseError
    ├── ConfigError                     a setting, flag or topic config is wrong
    │   ├── UnknownSetting              its name is not known; the error suggests one
    │   ├── InvalidSetting              its value is not allowed
    │   └── InvalidTopicConfig          a topic config whose name or value is not allowed
    ├── InvalidRequest                  the request is not valid
    │   ├── InvalidTopicName
    │   ├── InvalidPartitions
    │   ├── InvalidReplicationFactor
    │   ├── InvalidReplicaAssignment    partitions placed by hand, and not where the ring places them
    │   ├── NoReassignment              there is nothing to cancel: the ring places partitions
    │   ├── InvalidRecord               a batch that is whole, but a client may not write it
    │   ├── InvalidAcks                 acks is -1 (all), 1 or 0
    │   ├── InvalidTimestamp            a record's time is further away than its topic allows
    │   ├── PolicyViolation             the topic's configs forbid it
    │   ├── TransactionsUnsupported     a transaction was asked for
    │   ├── MalformedRequest            the bytes are no request of the protocol
    │   ├── OffsetOutOfRange            below the log's start or above its end, by a fresh read (R16)
    │   └── LimitExceeded               over a limit of core/limits.py
    ├── CorruptData                     bytes that fail a check
    │   ├── CorruptBatch                a record batch (CRC, length, count)
    │   ├── CorruptFrame                a WAL frame
    │   ├── CorruptBlob                 an LLS1 shared blob
    │   ├── CorruptSegment              a STRM segment
    │   ├── CorruptDocument             a JSON document of a key-value metadata store
    │   ├── DamagedObject               an object of the log is missing, or its bytes fail their checks
    │   └── InflatedTooLarge            a compressed body over the cap
    ├── DataLost                        records that a Spark query was to read are gone (failOnDataLoss)
    ├── UnsupportedVersion              a format, schema or codec that is newer than this build
    ├── StoreError                      the object store
    │   ├── ObjectNotFound
    │   ├── ObjectExists                create-only put on a taken key
    │   ├── ReadPastEnd                 a range reaches past the object's end
    │   ├── StoreUnavailable            retries ran out, or time-out
    │   │   └── StoreCredentialsMissing  no credentials were found anywhere
    │   ├── StoreDenied                 credentials or permissions
    │   └── StoreMisconfigured          no such bucket, wrong region or endpoint, a file system without hard links
    ├── MetadataError                   the metadata store
    │   ├── MetadataUnavailable         unreachable, or retries ran out
    │   ├── MetadataDenied              user, password or permissions
    │   ├── MetadataMisconfigured       no such database or schema
    │   ├── MetadataDamaged             the file of an SQLite store fails its checks
    │   ├── SchemaTooNew                written by a newer StreamHouse
    │   ├── MetadataTooOld              an older copy than the WAL or the objects beside it
    │   └── DurabilityMismatch          wal_id or durability mode differs from the stored one (R2)
    ├── WalError                        the write-ahead log
    │   └── WalFailed                   a write or sync failed; this process acknowledges nothing any more
    │       └── WalOutcomeUnknown       the failure came while this frame was written; it may be on the disk
    ├── BackPressureRejected            memory or disk is full of uncommitted data; nothing was written
    ├── NotAcknowledged                 a write was not acknowledged in time; it may be written later, or never
    ├── PassIncomplete                  a pass of maintenance could not do a part of its work
    ├── NotAdopted                      a sink's batch is stored, but no leader has put it into the log in time
    ├── TargetError                     a database or table that a pipeline writes to
    │   └── TargetUnavailable           it does not answer
    ├── NotFound
    │   ├── TopicNotFound
    │   │   └── UnknownTopicId          … by its id, which a recreated topic does not keep
    │   ├── PartitionNotFound
    │   ├── AgentNotFound
    │   ├── GroupNotFound
    │   ├── TransferNotFound
    │   └── DefinitionNotFound          a table or pipeline that is not defined
    ├── AlreadyExists
    │   ├── TopicExists
    │   └── DefinitionExists
    ├── GroupError                      a consumer group's rules
    │   ├── CoordinatorLoading          its coordinator is loading it from the store
    │   ├── CoordinatorNotAvailable     it has no coordinator now, or the store did not answer
    │   ├── NotCoordinator              another agent coordinates it
    │   ├── IllegalGeneration           the member's generation is not the group's
    │   ├── InconsistentProtocol        no protocol in common with the other members
    │   ├── InvalidGroupId
    │   ├── UnknownMember               not a member, or not any more
    │   ├── InvalidSessionTimeout
    │   ├── RebalanceInProgress         the member must join again
    │   ├── OffsetMetadataTooLarge
    │   ├── MemberIdRequired            the member must join again with the id in the error
    │   ├── GroupFull
    │   ├── FencedInstance              another process uses this static member's id
    │   ├── GroupSubscribed             the group still reads the topic whose offsets are to be deleted
    │   ├── FencedMemberEpoch           the member must give up all partitions and join again
    │   ├── UnreleasedInstance          the static member with that id has not left
    │   ├── UnsupportedAssignor
    │   ├── StaleMemberEpoch            the member has a newer epoch
    │   └── InvalidPattern              it is no regular expression of RE2
    ├── ServiceError                    a private PostgreSQL, S3 or Oxia server for tests and development
    │   ├── ServiceMissing              its program was not found
    │   └── ServiceFailed               it did not start, or does not do what we need
    └── Conflict                        another process was first, or this one is fenced
        ├── WalInUse                    another process holds the WAL's directory
        ├── LeaseHeldByOther
        ├── NotLeader
        ├── StaleEpoch
        ├── UnknownEpoch                the caller knows a later epoch than this agent
        ├── AgentSuperseded             a newer incarnation of this agent id registered
        ├── TransferConflict            a transfer is not in the state this step needs
        ├── CompactionConflict
        ├── OutOfOrderSequence          an idempotent producer left a gap
        ├── DuplicateSequence           it repeated a batch that is older than its last five
        ├── StaleProducer               a newer epoch of this producer has written
        ├── GroupNotEmpty               a simple commit on a group with members
        ├── BatchRegressed              a sink batch older than the last one (R8)
        ├── CheckpointLost              a pipeline's state is gone, but its target has rows
        ├── TableBusy                   other writers change the table too often
        └── DefinitionChanged           the definition of the table or pipeline was changed meanwhile

Each class has its Kafka error code, its HTTP status, whether the same call may succeed later, and a hint what to do
next. Front ends translate from these attributes; they never make up codes of their own. The classes are defined in one
module for each layer; import them from here.
"""

from streamhouse.core.errors.base import *
from streamhouse.core.errors.conflicts import *
from streamhouse.core.errors.data import *
from streamhouse.core.errors.groups import *
from streamhouse.core.errors.maintenance import *
from streamhouse.core.errors.requests import *
from streamhouse.core.errors.spark import *
from streamhouse.core.errors.stores import *
