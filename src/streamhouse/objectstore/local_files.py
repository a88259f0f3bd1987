"""Durable, create-only files under one root. Synchronous: local.py runs it in threads.

    ROOT/.tmp/{uuid}          being written; no key begins a segment with a dot, so no key can name it
    ROOT/{key}                published, complete, never changed

Publishing: write the temp file, fsync it, link it to its final name (which fails if that name is taken), fsync the
directory, unlink the temp name. A crash at any point leaves either nothing, or a stale temp file, or the whole object.

A directory counts as durable only once its own parent was fsynced *by us*: another process may have made it a moment
ago and not yet have got that far. Directories are never removed, because removing one would undo that knowledge in
other processes; an empty one costs a block.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from streamhouse.core.errors import InvalidRequest, ObjectExists, ObjectNotFound, StoreError, StoreMisconfigured
from streamhouse.core.limits import MAX_KNOWN_DIRECTORIES, MAX_LOCAL_LIST_PAGE
from streamhouse.objectstore.checks import check_body_size, is_key
from streamhouse.objectstore.direct_io import DirectFiles
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo

TEMP_DIRECTORY: Final = ".tmp"
_MAX_IOVECS: Final = 1024  # IOV_MAX on Linux


class DurableFiles:
    def __init__(self, root: Path, *, direct_io: bool = True) -> None:
        self.root = os.path.abspath(root)
        self._temp_root = os.path.join(self.root, TEMP_DIRECTORY)
        self._durable: set[str] = set()
        self._direct = DirectFiles(wanted=direct_io)

    def open(self, *, create: bool) -> None:
        """Make the root durable, and find out now whether this file system can publish."""
        if create:
            self._make_root()
        elif not os.path.isdir(self.root):
            raise StoreMisconfigured(f"there is no directory {self.root}")
        os.makedirs(self._temp_root, exist_ok=True)

    def check_links(self, name: str) -> None:
        temp = self.create_temp(name)
        os.close(temp[0])
        try:
            os.link(temp[1], temp[1] + "-link")
            os.unlink(temp[1] + "-link")
        except OSError as error:
            raise StoreMisconfigured(
                f"the file system of {self.root} makes no hard links: {error.strerror}",
                hint="put the store on a local Linux file system such as ext4 or xfs",
            ) from error
        finally:
            os.unlink(temp[1])

    def remove_stale_temps(self, older_than_ms: int) -> int:
        """Temp files untouched since then; a younger one may belong to a process that is writing it now."""
        removed = 0
        with os.scandir(self._temp_root) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if _modified_ms(entry.stat(follow_symlinks=False)) < older_than_ms:
                        os.unlink(entry.path)
                        removed += 1
        return removed

    def create_temp(self, name: str) -> tuple[int, str]:
        path = os.path.join(self._temp_root, name)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path

    def put(self, key: str, views: Sequence[memoryview], temp_name: str) -> None:
        fd, temp = self.create_temp(temp_name)
        try:
            try:
                if not self._direct.write(fd, views):
                    write_all(fd, views)
                os.fsync(fd)
            finally:
                os.close(fd)
            self.publish(temp, key)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temp)

    def publish(self, temp: str, key: str) -> None:
        """Give a fsynced temp file its name, durably; the temp name stays. Raises ObjectExists if the name is taken."""
        final = os.path.join(self.root, key)
        directory = os.path.dirname(final)
        try:
            self._link(temp, final, directory)
        except FileExistsError:
            if os.path.isdir(final):
                raise InvalidRequest(f"{key} cannot be an object in {self.root}: it is a directory of others") from None
            # The process that linked it may not have synced the directory yet; the caller may call it its own (R11).
            _fsync_directory(directory)
            raise ObjectExists(f"{key} exists already in {self.root}") from None
        _fsync_directory(directory)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> Fetched:
        """Read a range of an object; the whole object if ``length`` is None."""
        fd = self._open_object(key)
        try:
            size_bytes = os.fstat(fd).st_size
            if length is None:
                check_body_size(f"object {key}", size_bytes)
                length = size_bytes
            data = self._direct.read(fd, offset, length)
            if data is None:
                data = memoryview(_read_exactly(fd, offset, length))
            return Fetched(data=data, size_bytes=size_bytes)
        finally:
            os.close(fd)

    def head(self, key: str) -> ObjectInfo:
        try:
            found = os.stat(os.path.join(self.root, key), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            raise self._not_found(key) from None
        if not stat.S_ISREG(found.st_mode):
            raise self._not_found(key)
        return _info(key, found)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects without fsync: a delete that a crash has undone leaves garbage that no entry refers to."""
        for key in keys:
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                os.unlink(os.path.join(self.root, key))

    def list_page(self, prefix: str, start_after: str | None) -> ListPage:
        objects: list[ObjectInfo] = []
        base = prefix[: prefix.rfind("/") + 1]
        for key, entry in _walk(os.path.join(self.root, base), base, prefix, start_after):
            with suppress(FileNotFoundError):
                objects.append(_info(key, entry.stat(follow_symlinks=False)))
            if len(objects) == MAX_LOCAL_LIST_PAGE:
                return ListPage(objects=objects, next_start_after=key)
        return ListPage(objects=objects, next_start_after=None)

    def _make_root(self) -> None:
        missing = []
        path = self.root
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(directory)
            _fsync_directory(os.path.dirname(directory))
        if not missing:
            # A root that was there may be brand new. If we may not look into its parent, another process made it.
            with suppress(PermissionError):
                _fsync_directory(os.path.dirname(self.root))

    def _link(self, temp: str, final: str, directory: str) -> None:
        try:
            self._ensure_directory(directory)
            os.link(temp, final)
        except NotADirectoryError:
            raise InvalidRequest(f"{final} cannot be an object: a part of its path is an object itself") from None
        except FileNotFoundError:
            if not os.path.exists(temp):
                raise StoreError(
                    f"{temp} was cleared away before it became {final}", hint="it lay idle for too long; write it again"
                ) from None
            # Another process has removed the directory.
            self._durable.clear()
            self._ensure_directory(directory)
            os.link(temp, final)

    def _ensure_directory(self, directory: str) -> None:
        """Make it, and every directory above it, and fsync the parent of each that we have not fsynced before."""
        if directory in self._durable or directory == self.root:
            return
        parent = os.path.dirname(directory)
        self._ensure_directory(parent)
        try:
            os.mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise NotADirectoryError from None
        _fsync_directory(parent)
        if len(self._durable) >= MAX_KNOWN_DIRECTORIES:
            self._durable.clear()
        self._durable.add(directory)

    def _open_object(self, key: str) -> int:
        path = os.path.join(self.root, key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # ELOOP: a symbolic link is no object
                raise self._not_found(key) from None
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._not_found(key)
        return fd

    def _not_found(self, key: str) -> ObjectNotFound:
        return ObjectNotFound(f"{key} is not in {self.root}")


def write_all(fd: int, views: Sequence[memoryview]) -> None:
    pending = list(views)
    first = 0
    while first < len(pending):
        written = os.writev(fd, pending[first : first + _MAX_IOVECS])
        while first < len(pending) and written >= len(pending[first]):
            written -= len(pending[first])
            first += 1
        if written:
            pending[first] = pending[first][written:]


def _read_exactly(fd: int, offset: int, length: int) -> bytes:
    """Read a range of a file. There are fewer bytes only at the file's end."""
    body = os.pread(fd, length, offset)
    if len(body) == length or not body:
        return body
    pieces = [body]
    while body and (got := sum(map(len, pieces))) < length:
        body = os.pread(fd, length - got, offset + got)
        pieces.append(body)
    return b"".join(pieces)


def _walk(path: str, base: str, prefix: str, start_after: str | None) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Objects in key order. A directory sorts by its name with the slash, as its keys do: ``a-b`` before ``a/b``."""
    found: list[tuple[str, os.DirEntry[str]]] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        for entry in entries:
            key = base + entry.name
            if entry.is_dir(follow_symlinks=False):
                key += "/"
                if _may_hold(key, prefix, start_after) and not entry.name.startswith("."):
                    found.append((key, entry))
            elif _is_asked_for(key, prefix, start_after) and entry.is_file(follow_symlinks=False):
                found.append((key, entry))
    found.sort(key=lambda pair: pair[0])
    for key, entry in found:
        if key.endswith("/"):
            yield from _walk(entry.path, key, prefix, start_after)
        else:
            yield key, entry


def _may_hold(directory: str, prefix: str, start_after: str | None) -> bool:
    if not (directory.startswith(prefix) or prefix.startswith(directory)):
        return False
    return start_after is None or directory > start_after or start_after.startswith(directory)


def _is_asked_for(key: str, prefix: str, start_after: str | None) -> bool:
    return key.startswith(prefix) and (start_after is None or key > start_after) and is_key(key)


def _fsync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=found.st_size, modified_ms=_modified_ms(found), etag=None)


def _modified_ms(found: os.stat_result) -> int:
    return found.st_mtime_ns // 1_000_000
