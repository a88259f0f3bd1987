"""The bounds that several packages use, each with its reason. Bounds of one module are declared in that module."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Record batches.
MAX_BATCH_BYTES: Final = 100 * MIB  # a request may not be larger, so a batch cannot be
MAX_INFLATED_BATCH_BYTES: Final = 256 * MIB  # a 100 MiB zstd bomb inflates to terabytes; no honest batch comes near
MAX_PREPARED_INLINE_BYTES: Final = 256 * KIB  # uncompressed; more would hold up the event loop for milliseconds
MAX_RECORD_ERRORS: Final = 1000  # named in one answer; clients fail the whole batch whatever their number
MAX_RECORDS_PER_BATCH: Final = 10_000_000  # an empty record is 7 bytes on the wire: 100 MiB hold 15 M at most
MAX_HEADERS_PER_RECORD: Final = 10_000  # a record's headers are decoded into objects: about 1 MB for one record at most
MAX_CODEC_FRAMES: Final = 1000  # gzip members, lz4 or zstd frames in one batch: a writer makes one
MAX_CODEC_BLOCKS: Final = 1_000_000  # zstd or xerial blocks in one batch, walked in Python: tenths of a second at most
MAX_ZSTD_WINDOW_BYTES: Final = 128 * MIB  # zstd's own default for readers; its level 22 asks for that much

# Formats.
MAX_BLOB_HEADER_BYTES: Final = 16 * MIB  # the JSON header of 60,000 partitions; a larger length is a corrupt one
MAX_BLOB_PARTITIONS: Final = 50_000  # what one flush of one agent may carry
MAX_BLOB_BYTES: Final = 1 * GIB  # one flush, held in memory until its put; a flush that large is a stuck one
MAX_SEGMENT_BYTES: Final = 4 * GIB  # compaction stops far earlier; an object is at most 5 GiB (server-side copy)
MAX_SEGMENT_INDEX_BYTES: Final = 64 * MIB  # 4 GiB of 64 KiB blocks at 20 bytes an index entry, with room
MAX_BLOCK_BYTES: Final = 128 * MIB  # a block holds whole batches: one largest batch, and a normal block before it
TARGET_BLOCK_BYTES: Final = 1 * MIB  # one ranged GET is worth about 1 MB: below, request cost dominates
MAX_WAL_FRAME_BYTES: Final = 101 * MIB  # one largest batch and its frame header

# Write-ahead log.
MAX_WAL_SPARE_FILES: Final = 8  # emptied files kept for reuse: half a GiB at the default size, a burst's worth
MAX_WAL_IOVECS: Final = 1024  # IOV_MAX on Linux: buffers that one pwritev takes
MAX_WAL_ID_FILE_BYTES: Final = 4 * KIB  # two short lines; anything longer is not ours

# Object store.
MULTIPART_THRESHOLD_BYTES: Final = 16 * MIB  # below, one PUT is faster and cheaper than three requests
MULTIPART_PART_BYTES: Final = 8 * MIB  # S3's minimum is 5 MiB; 8 GiB stays under its 10,000 parts
MAX_OBJECT_KEY_BYTES: Final = 1024  # S3's own limit
MAX_KEY_SEGMENT_BYTES: Final = 255  # what a file name may hold, so that a key is a path on any file system
MAX_LIST_PAGE: Final = 1000  # S3's own page size
MAX_LOCAL_LIST_PAGE: Final = 10_000  # each page sorts its directories again, so few large ones; 2 MB of names
MAX_REQUEST_BODY_BYTES: Final = 512 * MIB  # one put or get holds its body in memory; more goes by upload and by range
MAX_OBJECT_BYTES: Final = 5 * GIB  # what S3 copies in one request, which is how an upload is published
MULTIPART_PARALLEL_PARTS: Final = 4  # 32 MiB in flight for one upload; more gains nothing on one connection's worth
READ_COALESCE_GAP_BYTES: Final = 1 * MIB  # closer ranges are read in one GET: the gap costs less than a request
MAX_RANGES_PER_READ: Final = 10_000  # one call's plan; a read of a segment asks for some dozens
MAX_PARALLEL_RANGE_READS: Final = 8  # GETs of one get_ranges call in flight
LOCAL_STORE_THREADS: Final = 8  # fsyncs of different files run side by side; more only queue at the disk
STALE_TEMP_MS: Final = 3_600_000  # a temp file untouched for an hour has no writer any more
MAX_KNOWN_DIRECTORIES: Final = 100_000  # directories known durable; forgotten ones are fsynced once more
MAX_STORE_ATTEMPTS: Final = 100  # a call's deadline ends it earlier; this ends it under a clock that stands still

# Metadata.
COORDINATOR_SLOTS: Final = 50  # Kafka's default for its offsets topic; fixed for the life of a store
MAX_PARTITIONS_PER_TOPIC: Final = 100_000  # one transaction creates them all
MAX_COMMIT_PARTITIONS: Final = 50_000  # one blob's worth
MAX_COMMIT_BATCHES: Final = 500_000  # listed one by one for deduplication; about 30 MB of parameters
MAX_SCAN_ENTRIES: Final = 10_000  # a page of a forward scan
MAX_LEASES_PER_CALL: Final = 10_000  # an agent's whole set in one renewal
MAX_PRODUCERS_PER_PARTITION: Final = 10_000  # windows a leader loads and keeps, 220 bytes each: 2 MB
MAX_UNPACKED_PRODUCERS: Final = 64  # of these, windows kept as objects, 830 bytes each: producers that write now
MAX_PRODUCERS_PER_LOAD: Final = 2_000  # windows in one call of a take-over: about 20 ms of work, done in small steps
RESUBMIT_MAX_AGE_MS: Final = 600_000  # R4: older acks=1 records are not resubmitted; append ids are kept for longer
PRODUCER_WINDOW: Final = 5  # Kafka's max.in.flight.requests.per.connection with idempotence
MAX_GROUP_STATE_BYTES: Final = 16 * MIB  # a group's persisted members and assignments
MAX_GROUP_ID_BYTES: Final = 1024  # a group id is a key; a longer one is an accident or an attack
MAX_OFFSET_METADATA_BYTES: Final = 4096  # Kafka's offset.metadata.max.bytes
MAX_INTENT_SLICES: Final = 100_000  # tasks times partitions of one Spark batch
MAX_CHANGE_QUEUE: Final = 10_000  # a subscriber that falls behind gets one "anything may have changed" instead
MAX_LEASE_TTL_MS: Final = 3_600_000  # a longer lease is a mistake of units
MAX_TTL_MS: Final = 30 * 86_400_000  # pins, claims, flush requests, transfers: a longer one is a mistake of units
MAX_KEYS_PER_CALL: Final = 100_000  # partitions, objects or pins named in one call: a largest topic's worth
MAX_ROWS_PER_SWEEP: Final = 100_000  # what one call of a clean-up may drop: it runs in one transaction
MAX_PRODUCER_ID_BLOCK: Final = 1_000_000  # lost with its owner; 2⁶³ ids never run out at this rate
MAX_DEFINITION_BYTES: Final = 256 * KIB  # a table's schema or a pipeline's SQL, written by a person
MAX_MARKED_PARTITIONS: Final = 1000  # named in a mark of the metadata's progress, which is then some 100 KiB at most
MAX_DEFINITIONS: Final = 10_000  # of one kind; they are listed whole
MAX_METADATA_DOCUMENT_BYTES: Final = 4 * MIB  # gRPC's default message limit, which a key-value store inherits

# Reading.
MAX_KNOWN_DAMAGE: Final = 1000  # damaged ranges of objects that are shown and checked again, about 2 KB each

# Metrics and health.
MAX_METRIC_SERIES: Final = 1000  # partitions, or partitions of groups, on one page: about 10 ms of the event loop
MAX_METERED_TOPICS: Final = 10_000  # whose requests to the object store are counted each, some 500 bytes a topic
MAX_NOTED_COMMITS: Final = 10_000  # last commits of consumer groups kept for their lag, about 300 bytes each

# Spark.
MAX_SPLITS: Final = 100_000  # tasks of one batch: each costs Spark some kilobytes and 30 ms
MAX_PLANNED_ENTRIES: Final = 200_000  # named in one plan, 300 bytes each; of more, tasks look up their own

# Requests.
MAX_REQUEST_BYTES: Final = 100 * MIB  # Kafka's socket.request.max.bytes
MAX_REQUEST_ITEMS: Final = 50_000  # array items in one request: two for each of 25,000 partitions, a second of work
MAX_ANSWER_BYTES: Final = 100_000_000  # without records; librdkafka's receive.message.max.bytes: it takes no more
MAX_REQUEST_STRING_BYTES: Final = 32_767  # what a Kafka string may have; Kafka refuses longer ones too
MAX_REMEMBERED_REFUSALS: Final = 1000  # refused producers of one connection; a client has one producer
MAX_SESSION_PARTITIONS: Final = 200_000  # of all fetch sessions, 400 bytes each; above it, fetches are full ones

# Names.
MAX_AGENT_ID_BYTES: Final = 256  # an id is written into every lease and heartbeat row
MAX_LISTENERS_PER_AGENT: Final = 16  # one for each protocol that clients speak
MAX_JSON_METADATA_BYTES: Final = 64 * KIB  # an agent's free-form metadata
MAX_NAME_BYTES: Final = 1024  # query ids, claims, owners, reasons: keys of rows, or a line of text

# Configuration.
MAX_CONFIG_FILE_BYTES: Final = 1 * MIB  # every setting spelled out with comments is a few KiB
MAX_TOPIC_CONFIG_CHARS: Final = 32_767  # what a Kafka string holds, so any value can be described back to a client
