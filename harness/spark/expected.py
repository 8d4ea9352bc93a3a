"""The end state of a workload as Spark SQL computes it from the same events, and its differences from another one.

It shares no code with the workloads: it is SQL only. Columns of a state: ``partition`` (int), ``store`` (string),
``key`` and ``value`` (binary), one row per key.
"""

from __future__ import annotations

import functools
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from harness.spark import expected_nexmark
from harness.workloads.batches import record_form
from stores.errors import ConfigError

_COUNT = """
    select partition, 'counts' as store, key,
           concat(unhex(lpad(hex(count(*)), 16, '0')), max_by(value, struct(timestamp_ms, seq))) as value
    from {events} group by partition, key
"""

_EVENT_LOG = """
    select partition, 'events' as store, key,
           encode(concat('{{"events":', count(*), ',"latest":',
                         decode(max_by(value, struct(timestamp_ms, seq)), 'UTF-8'), '}}'), 'UTF-8') as value
    from {events} group by partition, key
"""

_FLIGHT_FIELDS = """
    select partition, key, struct(timestamp_ms, seq) as place,
           field[2] as origin, field[3] as dest, field[4] <> '' as departed,
           cast(nullif(field[5], '') as bigint) as dep_delay, cast(nullif(field[6], '') as bigint) as arr_delay,
           cast(nullif(field[7], '') as bigint) as air_time, cast(field[8] as bigint) as distance
    from (select *, split(decode(value, 'UTF-8'), ',') as field from {events})
"""

_AIRCRAFT = """
    select partition, 'aircraft' as store, key, encode(concat_ws(',',
               count_if(departed), count_if(not departed), coalesce(sum(distance) filter (where departed), 0),
               coalesce(sum(air_time), 0), coalesce(sum(dep_delay), 0),
               coalesce(max_by(dest, place) filter (where departed), '')), 'UTF-8') as value
    from {departures} group by partition, key
"""

_ROUTES = """
    select partition, 'routes' as store, encode(concat(origin, '-', dest), 'UTF-8') as key, encode(concat_ws(',',
               count_if(departed), count_if(not departed), coalesce(sum(distance) filter (where departed), 0),
               count(arr_delay), coalesce(sum(arr_delay), 0),
               coalesce(cast(max(arr_delay) as string), '')), 'UTF-8') as value
    from {departures} group by partition, origin, dest
"""


_BY_HOUR = """
    select *, unix_millis(hour.start) as start_ms, unix_millis(hour.end) as end_ms
    from (select partition, origin, departed, dep_delay, place, window(timestamp_millis(place.timestamp_ms), '1 hour')
                 as hour from {departures})
"""

_COUNTED = """
    concat('[', concat_ws(',', count_if(departed), count(dep_delay), coalesce(sum(dep_delay), 0),
           coalesce(cast(floor(try_divide(sum(dep_delay) * 1000, count(dep_delay))) as string), 'null')), ']')
"""

_HOURS = f"""
    select partition, 'hours' as store, encode(concat(origin, '@', start_ms, '-', end_ms), 'UTF-8') as key,
           encode({_COUNTED}, 'UTF-8') as value
    from {{by_hour}} group by partition, origin, start_ms, end_ms
"""

_RECENT_MS = 3 * 3_600_000

_RECENT = f"""
    select partition, 'recent' as store, encode(concat(origin, '@', start_ms, '-', end_ms), 'UTF-8') as key,
           encode(concat({_COUNTED}, '@', max_by(place.timestamp_ms, place.seq)), 'UTF-8') as value
    from (select *, max(start_ms) over (partition by partition) as stream_time from {{by_hour}})
    where start_ms > stream_time - {_RECENT_MS} group by partition, origin, start_ms, end_ms
"""

_LATE = f"""
    select partition, 'late' as store, encode(origin, 'UTF-8') as key, encode(string(count(*)), 'UTF-8') as value
    from (select *, max(start_ms) over (partition by partition order by place.seq
                                        rows between unbounded preceding and 1 preceding) as stream_time
          from {{by_hour}})
    where start_ms <= stream_time - {_RECENT_MS} group by partition, origin
"""

_BY_SESSION = """
    select partition, encode(concat(decode(key, 'UTF-8'), '@', start_ms, '-', end_ms), 'UTF-8') as key,
           concat('[', departures, ',', cancelled, ',', distance, ']') as summed, last_ms, end_ms
    from (select *, unix_millis(session.start) as start_ms, unix_millis(session.end) - 4 * 3600000 as end_ms
          from (select partition, key, session_window(timestamp_millis(place.timestamp_ms), '4 hours') as session,
                       count_if(departed) as departures, count_if(not departed) as cancelled,
                       coalesce(sum(distance) filter (where departed), 0) as distance,
                       max_by(place.timestamp_ms, place.seq) as last_ms
                from {departures}
                group by partition, key, session_window(timestamp_millis(place.timestamp_ms), '4 hours')))
"""

_SESSIONS = """
    select partition, 'sessions' as store, key, encode(concat(summed, '@', last_ms), 'UTF-8') as value from {by_session}
"""

_RECENT_SESSIONS = """
    select partition, 'recent' as store, key, encode(summed, 'UTF-8') as value
    from (select *, max(end_ms) over (partition by partition) as stream_time from {by_session})
    where end_ms > stream_time - 18 * 3600000
"""


_COUNT_ROWS = """
    select key, timestamp_ms,
           concat(unhex(lpad(hex(row_number() over so_far), 16, '0')), value) as value
    from {events} window so_far as (partition by partition, key order by seq)
"""

_HOUR_ROWS = """
    select encode(concat(origin, '@', start_ms), 'UTF-8') as key, place.timestamp_ms,
           encode(concat('[', concat_ws(', ', count_if(departed) over so_far, count(dep_delay) over so_far,
                                        coalesce(sum(dep_delay) over so_far, 0),
                                        coalesce(string(floor(try_divide(sum(dep_delay) over so_far * 1000,
                                                                         count(dep_delay) over so_far))), 'None')),
                         ']'), 'UTF-8') as value
    from {by_hour} window so_far as (partition by partition, origin, start_ms order by place.seq
                                     rows between unbounded preceding and current row)
"""

_SESSION_ROWS = """
    select key, timestamp_ms, encode(concat(start_ms, '-', end_ms, ': [', concat_ws(', ', departures, cancelled,
                                            distance), ']'), 'UTF-8') as value
    from (select key, seq, timestamp_ms, min(time_ms) as start_ms, max(time_ms) as end_ms,
                 count_if(departed) as departures, count_if(not departed) as cancelled,
                 coalesce(sum(distance) filter (where departed), 0) as distance
          from (select *, count_if(begins) over (partition by key, seq order by time_ms) as number
                from (select *, coalesce(time_ms - lag(time_ms) over (partition by key, seq order by time_ms)
                                         > 4 * 3600000, true) as begins
                      from (select last.key, last.place.seq, last.place.timestamp_ms, earlier.departed,
                                   earlier.distance, earlier.place.timestamp_ms as time_ms
                            from {departures} as last join {departures} as earlier
                                 on last.partition = earlier.partition and last.key = earlier.key
                                    and earlier.place.seq <= last.place.seq)))
          group by key, seq, timestamp_ms, number)
    where timestamp_ms between start_ms and end_ms
"""
"""For each event: the session that it is in, among the events up to it. Not by ``session_window``, which finds other
sessions in the rows of this join (Spark 4.3.0)."""


_VIEWS = {
    "departures": _FLIGHT_FIELDS,
    "by_hour": _BY_HOUR,
    "by_session": _BY_SESSION,
    **expected_nexmark.VIEWS,
}
_STATES = {
    "count": (_COUNT,),
    "event_log": (_EVENT_LOG,),
    "flights": (_AIRCRAFT, _ROUTES),
    "flights_by_hour": (_HOURS, _RECENT, _LATE),
    "aircraft_sessions": (_SESSIONS, _RECENT_SESSIONS),
    **expected_nexmark.STATES,
}
"""The queries for the stores of each workload."""
_ROWS = {"count": _COUNT_ROWS, "flights_by_hour": _HOUR_ROWS, "aircraft_sessions": _SESSION_ROWS}


def expected_state(workload: str, events: DataFrame) -> DataFrame:
    """Return the content of the stores of ``workload`` after all ``events``.

    Raises: ConfigError for a workload without SQL.
    """
    workload = record_form(workload)
    if workload not in _STATES:
        raise ConfigError(f"no expected state for the workload {workload!r}: there is one for {', '.join(_STATES)}")
    return functools.reduce(DataFrame.unionByName, (_answer(store, events) for store in _STATES[workload]))


def expected_rows(workload: str, events: DataFrame) -> DataFrame:
    """Return what ``workload`` forwards for ``events``, one row each: ``key`` and ``value`` (binary), ``timestamp_ms``.

    Raises: ConfigError for a workload without SQL.
    """
    if workload not in _ROWS:
        raise ConfigError(f"no expected rows for the workload {workload!r}")
    return _answer(_ROWS[workload], events)


def _answer(sql: str, events: DataFrame) -> DataFrame:
    """Return the result of a query over ``events``, and over those of ``_VIEWS`` that it names."""
    views: Any = {name: _answer(view, events) for name, view in _VIEWS.items() if f"{{{name}}}" in sql}
    return events.sparkSession.sql(sql, events=events, **views)


def differences(actual: DataFrame, expected: DataFrame) -> DataFrame:
    """Return the keys whose state is not the expected one.

    Columns: ``partition``, ``store``, ``key``, ``difference`` (``missing``, ``unexpected``, ``different``, or
    ``repeated`` for a key that one side has more than once), ``actual`` and ``expected`` (binary, null where absent).
    """
    columns = ("partition", "store", "key", "value")
    expecteds = expected.select(*columns, F.lit(False).alias("is_actual"))
    both = actual.select(*columns, F.lit(True).alias("is_actual")).unionByName(expecteds)
    return both.sparkSession.sql(
        """
        select partition, store, key, case
                   when actuals = 0 then 'missing' when expecteds = 0 then 'unexpected'
                   when actuals > 1 or expecteds > 1 then 'repeated' else 'different' end as difference,
               actual, expected
        from (select partition, store, key, count_if(is_actual) as actuals, count_if(not is_actual) as expecteds,
                     max(value) filter (where is_actual) as actual, max(value) filter (where not is_actual) as expected
              from {both} group by partition, store, key)
        where actuals <> 1 or expecteds <> 1 or not actual <=> expected
    """,
        both=both,
    )
