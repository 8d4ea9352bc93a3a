"""The reads of a query, by the kind of the store: one key, or a scan in key order that can begin after a place.

A place is the position of a record in its scan: the bytes of its key, and for windows and sessions their times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator
from typing import Any

from stores.contract.arguments import TIME_BOUND_MS
from stores.records import BYTES, KeyValue, RecordKind, Serde, Session, TimestampedKeyValue, Window
from stores.worker.queries.json_forms import JsonForms
from stores.worker.queries.parameters import NUMBER_MIN, Parameters
from stores.worker.queries.refusals import Refused, bad_request

TIME_MAX_MS = TIME_BOUND_MS - 1
Place = tuple[Any, ...]
Scanned = Generator[tuple[Place, dict[str, Any]], None, None]
"""The records of a scan, each with its place and its fields for JSON."""


class Reads(ABC):
    """The reads of one kind of store. A view is typed, of any isolation level. Raises, all methods: Refused."""

    get_parameters: Collection[str] = ()
    """The parameters of ``get`` besides the key."""
    range_parameters: Collection[str] = ()
    """The parameters of ``range`` besides its ends."""

    def __init__(self, name: str, key: Serde[Any], value: Serde[Any]) -> None:
        self.name = name
        """The name of the kind."""
        self.key, self.value = key, value

    @abstractmethod
    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        """Return the value of a key, or None."""

    @abstractmethod
    def range(self, view: Any, start: Any, end: Any, parameters: Parameters, forms: JsonForms) -> Scanned:
        """Scan the keys from ``start`` to ``end``, both included; None leaves an end open."""

    def prefix(self, view: Any, prefix: Any, after: Place | None, forms: JsonForms) -> Scanned:
        """Scan the keys that begin with ``prefix``, from the key of the place ``after`` on."""
        raise bad_request(f"a {self.name} store has no scan by a prefix of its keys: ask for a range")

    @abstractmethod
    def is_place(self, place: Place) -> bool:
        """Return whether ``place`` may be one of this kind's scans."""


class KeyValueQuery(Reads):
    """The reads of bytes, KeyValue and TimestampedKeyValue."""

    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        return view.get(key)

    def range(self, view: Any, start: Any, end: Any, parameters: Parameters, forms: JsonForms) -> Scanned:
        with view.range(start, end) as pairs:
            yield from self._records(pairs, forms)

    def prefix(self, view: Any, prefix: Any, after: Place | None, forms: JsonForms) -> Scanned:
        if not forms.keeps_prefixes:
            raise bad_request(f"the bytes of {self.key.name} keys do not begin with those of a prefix: ask for a range")
        first = forms.place(prefix)
        with view.prefix_scan(prefix) if after is None else view.range(forms.key_at(after[0]), None) as pairs:
            for place, record in self._records(pairs, forms):
                if not place[0].startswith(first):
                    return
                yield place, record

    def is_place(self, place: Place) -> bool:
        return len(place) == 1

    def _records(self, pairs: Iterator[tuple[Any, Any]], forms: JsonForms) -> Scanned:
        for key, value in pairs:
            yield (forms.place(key),), {"key": forms.shown_key(key), **forms.fields(value)}


class WindowQuery(Reads):
    """The reads of Window."""

    get_parameters = ("window_start_ms",)
    range_parameters = ("start_ms", "end_ms")

    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        return view.fetch_one(key, parameters.required_number("window_start_ms", NUMBER_MIN, TIME_MAX_MS))

    def range(self, view: Any, start: Any, end: Any, parameters: Parameters, forms: JsonForms) -> Scanned:
        first_ms = parameters.number("start_ms", 0, NUMBER_MIN, TIME_MAX_MS)
        last_ms = parameters.number("end_ms", TIME_MAX_MS, NUMBER_MIN, TIME_MAX_MS)
        before: Place = ()
        with view.fetch_range(start, end, first_ms, last_ms) as records:
            for (key, start_ms, end_ms), value in records:
                place: Place = forms.place(key), start_ms, 0
                if before[:2] == place[:2]:
                    place = (*place[:2], before[2] + 1)
                before = place
                window = {"window_start_ms": start_ms, "window_end_ms": end_ms}
                yield place, {"key": forms.shown_key(key), **window, **forms.fields(value)}

    def is_place(self, place: Place) -> bool:
        return _is_timed(place)


class SessionQuery(Reads):
    """The reads of Session."""

    get_parameters = ("start_ms", "end_ms")
    range_parameters = ("earliest_end_ms", "latest_start_ms")

    def get(self, view: Any, key: Any, parameters: Parameters) -> Any:
        start_ms = parameters.required_number("start_ms", NUMBER_MIN, TIME_MAX_MS)
        end_ms = parameters.required_number("end_ms", NUMBER_MIN, TIME_MAX_MS)
        return view.fetch_session(key, start_ms, end_ms)

    def range(self, view: Any, start: Any, end: Any, parameters: Parameters, forms: JsonForms) -> Scanned:
        earliest_end_ms = parameters.number("earliest_end_ms", 0, NUMBER_MIN, TIME_MAX_MS)
        latest_start_ms = parameters.number("latest_start_ms", TIME_MAX_MS, NUMBER_MIN, TIME_MAX_MS)
        with view.find_sessions_range(start, end, earliest_end_ms, latest_start_ms) as records:
            for (key, start_ms, end_ms), value in records:
                session = {"session_start_ms": start_ms, "session_end_ms": end_ms}
                place = forms.place(key), end_ms, start_ms
                yield place, {"key": forms.shown_key(key), **session, **forms.fields(value)}

    def is_place(self, place: Place) -> bool:
        return _is_timed(place)


def reads_of(kind: RecordKind | None) -> Reads:
    """Return the reads of a store of that kind; None is bytes. Raises: Refused for a kind of the user's own."""
    if kind is None:
        return KeyValueQuery("bytes", BYTES, BYTES)
    if isinstance(kind, KeyValue | TimestampedKeyValue):
        return KeyValueQuery(kind.kind, kind.key, kind.value)
    if isinstance(kind, Window):
        return WindowQuery(kind.kind, kind.key, kind.value)
    if isinstance(kind, Session):
        return SessionQuery(kind.kind, kind.key, kind.value)
    raise Refused(501, f"stores of the kind {kind.kind} have no queries over HTTP: use their views in the process")


def _is_timed(place: Place) -> bool:
    return len(place) == 3 and all(type(number) is int for number in place[1:])
