"""Pages of a scan: a bounded part of it, and a cursor with which the next request goes on.

No iterator stays open between two requests. The cursor has the place of the last record, and a hash of the query, so
that it is refused by another one. It is no secret, and grants nothing.
"""

from __future__ import annotations

import base64
import json
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha256

from stores.worker.queries.json_forms import json_text
from stores.worker.queries.reads import Place, Reads, Scanned
from stores.worker.queries.refusals import bad_request

LIMIT, LIMIT_MAX = 100, 10_000
"""The records of a page: the default, and the most."""
PAGE_BYTES_MAX = 4 << 20
"""A page ends with the record that makes its JSON longer than this, whatever its limit."""


@dataclass(frozen=True)
class Page:
    """The records of a page, each as JSON. ``last`` is the place of its last one, None if no record follows."""

    records: list[str]
    last: Place | None


def page_of(scanned: Scanned, after: Place | None, limit: int) -> Page:
    """Return the next records of a scan whose place is beyond ``after``. Close the scan.

    It takes up to ``limit`` records, and looks at one more. A scan may begin before ``after`` by the records of one
    key.
    """
    records: list[str] = []
    size, last = 0, None
    with closing(scanned):
        for place, record in scanned:
            if after is not None and place <= after:
                continue
            if len(records) == limit or size > PAGE_BYTES_MAX:
                return Page(records, last)
            text = json_text(record)
            records.append(text)
            size += len(text)
            last = place
    return Page(records, None)


def cursor_of(query: str, place: Place | None) -> str | None:
    """Return the cursor of ``query`` with which its next page begins after ``place``; None for None."""
    if place is None:
        return None
    key, *times = place
    fields = [_fingerprint(query), key.hex(), *times]
    return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")


def place_of(query: str, cursor: str | None, reads: Reads) -> Place | None:
    """Return the place of a cursor of the same query, None for no cursor. Raises: Refused."""
    if cursor is None:
        return None
    # It comes from outside: whatever it is, it is a cursor or it is none. The serde may be the user's own.
    with suppress(Exception):
        fields = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        fingerprint, key, *times = fields
        place = (bytes.fromhex(key), *times)
        reads.key.deserialize(place[0])
        if fingerprint == _fingerprint(query) and reads.is_place(place):
            return place
    raise bad_request("the cursor is none of this query: give it with the other parameters of the page that it is of")


def _fingerprint(query: str) -> str:
    return sha256(query.encode()).hexdigest()[:12]
