"""The versions of a key in a versioned store: their keys and bytes, and the writes of a put.

A version is the value of a key from its own time until the time of the next one. A deletion is a version without value.

Kept: the latest version of each key under ``<LATEST><key>``, so that it is found by one lookup. Each older one is under
``<HISTORY><escaped key><time>``. Pairs ``<INDEX><end><key><time>`` with empty values say what expires once ``end`` is
before the history. That is an older version, which has ended then, or the latest version itself if it is a deletion: it
has its own time as ``end``.

The end of a version is the time of the next one, so it is stored nowhere, and a put that comes late changes no other
version. In the index a version that came late has the time of the latest version of that moment as ``end``. It may have
ended before, and is then dropped later than it could be.

Source: KIP-889. Kafka's ``RocksDBVersionedStore`` has the versions of a key and a segment of time in one value instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from stores.contract.arguments import TIME_BOUND_MS, Headers
from stores.errors import StoreCorruptedError, damaged
from stores.records.headers import stored_time_ms, stored_value, with_headers
from stores.records.segments import escaped, packed, unescaped, unpacked
from stores.records.values import TIME, TIME_BYTES, StagedWrite

VERSIONED: Final = "versioned-key-value"
"""The kind in the description of a versioned store."""
LATEST: Final = b"\x01"
HISTORY: Final = b"\x02"
INDEX: Final = b"\x03"
BEHIND: Final = packed(TIME_BOUND_MS)
"""Above every time in a key, and below what may follow the same bytes in a longer one."""
_DELETION: Final = 0x80
"""The highest bit of a deletion's first byte. No time has it, and none before headers."""
Lookup = Callable[[bytes], bytes | None]


def version_of(time_ms: int, data: bytes | None, headers: Headers = ()) -> bytes:
    """Return the bytes of a version: its time and its value, with headers as ``stores.records.headers`` says.

    Those of a deletion are the complement of its time.
    """
    return TIME.pack(~time_ms) if data is None else with_headers(data, time_ms, headers)


def is_deletion(version: bytes) -> bool:
    """Return True for a version without a value."""
    return bool(version) and version[0] >= _DELETION


def value_in(key: bytes, version: bytes) -> bytes | None:
    """Return the value of a version, which is under ``key``; None for a deletion. Raises: StoreCorruptedError."""
    if is_deletion(version):
        return None
    try:
        return stored_value(version)
    except ValueError:
        raise _unreadable(key) from None


def time_in(key: bytes, version: bytes) -> int:
    """Return the time of a version, which is under ``key``. Raises: StoreCorruptedError."""
    try:
        time_ms = stored_time_ms(version)
    except ValueError:
        raise _unreadable(key) from None
    return time_ms if time_ms >= 0 else ~time_ms


def _unreadable(key: bytes) -> StoreCorruptedError:
    return damaged(f"the version under key {key!r} of a store has no time, or headers that can't be read")


def history_key(key: bytes, time_ms: int) -> bytes:
    """Return the place of an older version."""
    return HISTORY + escaped(key) + packed(time_ms)


def index_key(end_ms: int, key: bytes, time_ms: int) -> bytes:
    """Return the pair of the index for a version that has ended at ``end_ms`` at the latest."""
    return INDEX + packed(end_ms) + key + packed(time_ms)


def key_in(place: bytes) -> bytes:
    """Return the caller's key from the place of a version."""
    return place[1:] if place.startswith(LATEST) else unescaped(place[1:-TIME_BYTES])


def time_at_end(key: bytes) -> int:
    """Return the time at the end of a key of the history or of the index."""
    return unpacked(key[-TIME_BYTES:])


def most_bytes(key: bytes) -> int:
    """Return the length of the longest key under which the store keeps anything of ``key``."""
    return 1 + TIME_BYTES + len(key) + max(TIME_BYTES, key.count(0) + 1)


def pairs_of_versions(
    key: bytes, versions: Iterable[tuple[int, bytes | None]], first_ms: int
) -> list[tuple[bytes, bytes]]:
    """Return the pairs of all versions of ``key``, given as time and value from the latest one on; None is a deletion.

    Versions that have ended by ``first_ms`` have expired and are left out, and so is a deletion of such a time.
    """
    pairs: list[tuple[bytes, bytes]] = []
    end_ms: int | None = None
    for time_ms, data in versions:
        ended_ms = time_ms if end_ms is None and data is None else end_ms
        if ended_ms is not None and ended_ms <= first_ms:
            break
        place = LATEST + key if end_ms is None else history_key(key, time_ms)
        pairs.append((place, version_of(time_ms, data)))
        if ended_ms is not None:
            pairs.append((index_key(ended_ms, key, time_ms), b""))
        end_ms = time_ms
    return pairs


class LatestVersions:
    """The writes of puts, one after the other, of which the earlier ones need not be in the store yet."""

    def __init__(self, get: Lookup, *, headers: bool) -> None:
        """``get`` is the lookup of the store, which keeps headers or leaves them out."""
        self._get, self._headers = get, headers
        self._pending: dict[bytes, bytes] = {}

    def forget(self) -> None:
        """Forget the writes so far: the store has them, or will not get them."""
        self._pending.clear()

    def writes(self, key: bytes, data: bytes | None, time_ms: int, headers: Headers = ()) -> list[StagedWrite]:
        """Return the writes of a put; ``data`` None is a deletion. Two at most are logged.

        After a put that is not the latest version, the latest one is logged again. So the last record of a key in the
        changelog is always its latest version, whatever compaction removes: no restore takes an older one for it.
        """
        place = LATEST + key
        latest = self._pending.get(place) or self._get(place)
        version = version_of(time_ms, data, headers if self._headers else ())
        own = StagedWrite(place, version, key, self._logged(place, version), time_ms)
        latest_ms = -1 if latest is None else time_in(place, latest)
        if latest is not None and time_ms < latest_ms:
            return [
                own._replace(key=history_key(key, time_ms)),
                StagedWrite(index_key(latest_ms, key, time_ms), b""),
                StagedWrite(place, latest, key, self._logged(place, latest), latest_ms),
            ]
        writes = [own]
        if latest is not None and time_ms > latest_ms:
            writes.append(StagedWrite(history_key(key, latest_ms), latest))
            writes.append(StagedWrite(index_key(time_ms, key, latest_ms), b""))
        if data is None:
            writes.append(StagedWrite(index_key(time_ms, key, time_ms), b""))
        self._pending[place] = version
        return writes

    def _logged(self, place: bytes, version: bytes) -> bytes | None:
        """Return ``StagedWrite.log_value`` of a version: see ``RecordKind.log_parts``."""
        return version if self._headers and not is_deletion(version) else value_in(place, version)


def expired_by(entry: bytes, get: Lookup) -> list[bytes]:
    """Return the keys to remove for a pair of the index that has expired: its own, and that of the version."""
    end, key, time = entry[1 : 1 + TIME_BYTES], entry[1 + TIME_BYTES : -TIME_BYTES], entry[-TIME_BYTES:]
    if end != time:
        return [entry, HISTORY + escaped(key) + time]
    latest = get(LATEST + key)
    # Another version may have followed the deletion, or taken its place.
    return [entry, LATEST + key] if latest == version_of(unpacked(time), None) else [entry]
