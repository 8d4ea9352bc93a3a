"""The reference of all properties, made from their tables and from the defaults of the settings that they set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from stores.config import STORE_PROPERTIES, StoreConfig, option
from stores.registry import backends
from stores.settings import Known, Property
from stores.tasks.config import TASK_PROPERTIES, TaskConfig
from stores.worker.foreign_names import STREAMS_ANSWERS
from stores.worker.settings import WorkerSettings
from stores.worker.worker_properties import WORKER_PROPERTIES

_COMMAND = "txstores worker --list-properties"
_PAGE = f"""\
# Properties of a worker

`{_COMMAND}` prints this list, and
`{_COMMAND} markdown` writes this page.
In a file of properties a line is `name=value`. [The worker](worker.md#properties) shows how they work together. The
last column is the counterpart in Kafka Streams, or the reason for which it has none. With Kafka, other names are
settings of its client, such as `security.protocol` and `linger.ms`. What belongs to a function, such as the size of its
batches, is no property: [`Processor`](worker.md#an-application) takes it.
"""
_FOREIGN = """
## Properties of Kafka Streams that a worker does not have

An error names each of them, with this answer.

| property | what to do instead |
| --- | --- |
"""
_SECTIONS: Mapping[str, tuple[Known, type]] = {
    "Of a worker": (WORKER_PROPERTIES, WorkerSettings),
    "Of its tasks": (
        {name: known for name, known in TASK_PROPERTIES.items() if name not in WORKER_PROPERTIES},
        TaskConfig,
    ),
    "Of its stores": (STORE_PROPERTIES, StoreConfig),
}


class ListedProperty(NamedTuple):
    """A property, as the reference has it."""

    name: str
    values: str
    default: str
    unit: str
    meaning: str
    kafka: str


def sections() -> Iterator[tuple[str, list[ListedProperty]]]:
    """Yield the properties of a worker, of its tasks, of its stores, and of their engines."""
    for title, (table, settings) in _SECTIONS.items():
        defaults = {each.name: each.default for each in fields(settings)}
        yield title, [_row(name, known, defaults.get(known.setting)) for name, known in table.items()]
    yield "Of the engines", _options()


def as_text() -> str:
    """Return the reference for a terminal."""
    lines = []
    for title, rows in sections():
        lines.append(f"{title}:\n")
        for row in rows:
            unit = f" {row.unit}" if row.unit else ""
            lines.append(
                f"  {row.name}\n      {row.meaning}\n      values: {row.values}; default: {row.default}{unit}"
                f"\n      Kafka Streams: {row.kafka.replace('`', '')}\n"
            )
    return "\n".join(lines)


def as_markdown() -> str:
    """Return the page ``docs/properties.md``."""
    page = [_PAGE]
    for title, rows in sections():
        page.append(f"\n## {title}\n\n| {' | '.join(_HEADINGS)} |\n|{' --- |' * len(_HEADINGS)}\n")
        page += [f"| `{row.name}` | {' | '.join(row[1:])} |\n" for row in rows]
    page.append(_FOREIGN)
    page += [f"| `{name}` | {answer} |\n" for name, answer in sorted(STREAMS_ANSWERS.items())]
    return "".join(page)


_HEADINGS = ("property", "values", "default", "unit", "meaning", "in Kafka Streams")
FORMS = {"text": as_text, "markdown": as_markdown}


def _row(name: str, known: Property, default: Any) -> ListedProperty:
    text = known.default
    if text is None:
        text = _shown(default * 1_000 if known.unit == "ms" else default)
    return ListedProperty(name, known.values, text, known.unit, known.meaning, known.kafka)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if default is None:
        return "none"
    return f"{default:,.0f}" if isinstance(default, int | float) else str(default)


def _options() -> list[ListedProperty]:
    """Return the options of all backends; one whose default differs between backends has several rows."""
    having: dict[tuple[str, Any], list[str]] = {}
    for backend in backends().values():
        for name, default in backend.options.items():
            having.setdefault((name, default), []).append(backend.name)
    rows = []
    for (name, default), names in sorted(having.items()):
        known = replace(option(name, default), meaning=f"an option of {', '.join(names)}", default=_shown(default))
        rows.append(_row(StoreConfig.OPTION + name, known, None))
    return rows
