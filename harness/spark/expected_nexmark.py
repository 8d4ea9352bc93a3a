"""The end states of the queries of Nexmark as Spark SQL computes them from the same events."""

from __future__ import annotations

from collections.abc import Mapping

_EVENTS = """
    select partition, seq, timestamp_ms, field[0] as kind, field
    from (select *, split(decode(value, 'UTF-8'), ',') as field from {events})
"""

_PEOPLE = """
    select partition, seq, timestamp_ms, field[1] as person, field[2] as name, field[3] as city, field[4] as state
    from {nexmark} where kind = 'P'
"""

_AUCTIONS = """
    select partition, seq, timestamp_ms, field[1] as auction, field[2] as category, field[3] as seller,
           cast(field[4] as bigint) as expires_ms
    from {nexmark} where kind = 'A'
"""

_BIDS = """
    select partition, seq, timestamp_ms, field[1] as auction, field[2] as bidder, cast(field[3] as bigint) as price,
           field[4] as channel, timestamp_ms div 10000 * 10000 as start_ms
    from {nexmark} where kind = 'B'
"""

_BEST = """
    select partition, auction, category, begin_ms, expires_ms, max(price) as best
    from (select a.partition, a.auction, a.category, a.timestamp_ms as begin_ms, a.expires_ms, b.price
          from {auctions} as a left join {bids} as b
               on a.partition = b.partition and a.auction = b.auction
                  and b.timestamp_ms between a.timestamp_ms and a.expires_ms and b.seq > a.seq)
    group by partition, auction, category, begin_ms, expires_ms
"""

_HOPS = """
    select partition, auction, hop_ms, count(*) as bids
    from (select partition, auction, explode(sequence(timestamp_ms div 2000 * 2000 - 8000, timestamp_ms div 2000 * 2000,
                                                      2000)) as hop_ms from {bids})
    group by partition, auction, hop_ms
"""

VIEWS: Mapping[str, str] = {
    "nexmark": _EVENTS,
    "people": _PEOPLE,
    "auctions": _AUCTIONS,
    "bids": _BIDS,
    "best": _BEST,
    "hops": _HOPS,
}
"""The queries that others name."""


def _store(name: str, key: str, value: str, rest: str) -> str:
    """Return the query of a store, whose key and value are expressions of texts over ``rest``."""
    return f"""
        select partition, '{name}' as store, encode({key}, 'UTF-8') as key, encode({value}, 'UTF-8') as value {rest}
    """


def _list(*expressions: str) -> str:
    """Return the text of a JSON list of expressions."""
    return f"concat('[', concat_ws(',', {', '.join(expressions)}), ']')"


def _text(expression: str) -> str:
    return f"concat('\"', {expression}, '\"')"


def _window(key: str, start: str) -> str:
    return f"concat({key}, '@', {start}, '-', {start} + 10000)"


STATES: Mapping[str, tuple[str, ...]] = {
    "nexmark_q3": (
        _store(
            "people",
            "person",
            _list(_text("name"), _text("city"), _text("state")),
            "from {people} where state in ('OR', 'ID', 'CA')",
        ),
        _store(
            "auctions",
            "seller",
            _list(f"transform(array_sort(collect_list(struct(seq, auction))), each -> {_text('each.auction')})"),
            "from {auctions} where category = '10' group by partition, seller",
        ),
    ),
    "nexmark_q4": (
        _store(
            "auctions",
            "auction",
            _list(_text("category"), "begin_ms", "expires_ms", "coalesce(string(best), 'null')"),
            "from {best}",
        ),
        _store(
            "categories",
            "category",
            _list("sum(best)", "count(best)"),
            "from {best} where best is not null group by partition, category",
        ),
    ),
    "nexmark_q5": (
        _store("bids", _window("auction", "hop_ms"), "string(bids)", "from {hops}"),
        _store(
            "hottest",
            _window("'all'", "hop_ms"),
            _list(
                "bids",
                _list(f"array_sort(collect_list({_text('auction')}))"),
            ),
            """from (select *, max(bids) over (partition by partition, hop_ms) as most from {hops})
               where bids = most group by partition, hop_ms, bids""",
        ),
    ),
    "nexmark_q7": (
        _store(
            "highest",
            _window("'all'", "start_ms"),
            _list("bid.price", _text("bid.auction"), _text("bid.bidder")),
            """from (select partition, start_ms, max_by(struct(price, auction, bidder), struct(price, -seq)) as bid
                     from {bids} group by partition, start_ms)""",
        ),
    ),
    "nexmark_q8": (
        _store(
            "people",
            _window("person", "timestamp_ms div 10000 * 10000"),
            _text("name"),
            "from {people}",
        ),
        _store(
            "sellers",
            _window("seller", "start_ms"),
            "string(count(*))",
            """from (select *, timestamp_ms div 10000 * 10000 as start_ms from {auctions})
               group by partition, seller, start_ms""",
        ),
    ),
    "nexmark_q11": (
        _store(
            "sessions",
            "concat(bidder, '@', start_ms, '-', end_ms)",
            "string(bids)",
            """from (select partition, bidder, min(timestamp_ms) as start_ms, max(timestamp_ms) as end_ms,
                            count(*) as bids
                     from (select *, count_if(begins) over (partition by partition, bidder order by seq) as number
                           from (select *, coalesce(timestamp_ms - lag(timestamp_ms)
                                                        over (partition by partition, bidder order by seq) > 10000,
                                                    true) as begins from {bids}))
                     group by partition, bidder, number)""",
        ),
    ),
    "nexmark_q17": (
        _store(
            "days",
            "concat(auction, '@', day_ms, '-', day_ms + 86400000)",
            _list(
                "count(*)",
                "count_if(price < 10000)",
                "count_if(price >= 10000 and price < 1000000)",
                "count_if(price >= 1000000)",
                "min(price)",
                "max(price)",
                "sum(price)",
            ),
            """from (select *, timestamp_ms div 86400000 * 86400000 as day_ms from {bids})
               group by partition, auction, day_ms""",
        ),
    ),
    "nexmark_q18": (
        _store(
            "bids",
            "concat(bidder, ',', auction)",
            _list("last.price", _text("last.channel"), "last.timestamp_ms"),
            """from (select partition, bidder, auction, max_by(struct(price, channel, timestamp_ms), seq) as last
                     from {bids} group by partition, bidder, auction)""",
        ),
    ),
    "nexmark_q19": (
        _store(
            "top",
            "auction",
            _list(
                f"transform(array_sort(collect_list(struct(place, price, bidder))), "
                f"each -> {_list('each.price', _text('each.bidder'))})"
            ),
            """from (select *, row_number() over (partition by partition, auction order by price desc, seq) as place
                     from {bids})
               where place <= 10 group by partition, auction""",
        ),
    ),
}
"""The queries for the stores of each query of Nexmark."""
