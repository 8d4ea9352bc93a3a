"""The topology of an application: its sub-topologies by number, each with its stores and its input topics.

As JSON::

    {"subtopologies": {"2": {"stores": ["counts"], "inputs": ["orders"]}, "3": {"stores": ["names"]}}}

A list in place of the object numbers its sub-topologies from 0. Source: KIP-816, "Background".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from os import PathLike
from typing import Self

from stores.contract.arguments import check_type
from stores.errors import ConfigError
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import checked_path
from stores.tasks.identifier import check_stores, check_subtopology, check_topic
from stores.topic import topic_name

_MULTIPLIER, _SHIFT = 0xC6A4A7935BD1E995, 47
_MASK = (1 << 64) - 1
SEED_BOUND = 1 << 64


def murmur2_64(data: bytes, seed: int = 0) -> int:
    """Return the hash of ``data``, 0 to 2**64 - 1; ``seed`` is below ``SEED_BOUND``. Not for adversaries.

    It is the same on every machine and in every release.
    Source: Austin Appleby, ``MurmurHash64A`` (public domain); KIP-816, "Alternative 2".
    """
    value = (seed ^ (len(data) * _MULTIPLIER)) & _MASK
    whole = len(data) & ~7
    for at in range(0, whole, 8):
        word = (int.from_bytes(data[at : at + 8], "little") * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> _SHIFT)) * _MULTIPLIER) & _MASK
        value = ((value ^ word) * _MULTIPLIER) & _MASK
    if whole < len(data):
        value = ((value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER) & _MASK
    value = ((value ^ (value >> _SHIFT)) * _MULTIPLIER) & _MASK
    return value ^ (value >> _SHIFT)


_BYTES_MAX = 16 << 20
_FIELDS = ("stores", "inputs")


@dataclass(frozen=True)
class Subtopology:
    """The stores and the input topics of a sub-topology, by name. Raises, when made: TypeError, ConfigError."""

    stores: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stores", _names("stores", self.stores))
        object.__setattr__(self, "inputs", tuple(map(topic_name, _names("inputs", self.inputs))))
        check_stores(self.stores)
        for topic in self.inputs:
            check_topic(topic)
        _check_once(self.stores, "store")
        _check_once(self.inputs, "input")


@dataclass(frozen=True)
class Topology:
    """Sub-topologies by number, 0 or more, the first number in a task's ID. Each store belongs to one of them.

    Raises, when made: TypeError; ConfigError for a store that is named twice, and for an invalid name or number.
    """

    subtopologies: Mapping[int, Subtopology]
    _numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_type(self.subtopologies, Mapping, "sub-topologies are a mapping by number")
        object.__setattr__(self, "subtopologies", dict(self.subtopologies))
        numbers: dict[str, int] = {}
        for number, subtopology in self.subtopologies.items():
            check_subtopology(number)
            check_type(subtopology, Subtopology, f"sub-topology {number} is a Subtopology")
            for store in subtopology.stores:
                if numbers.setdefault(store, number) != number:
                    raise ConfigError(
                        f"the topology names the store {store!r} twice, in the sub-topologies {numbers[store]} and "
                        f"{number}: a store belongs to one, drop the other"
                    )
        object.__setattr__(self, "_numbers", numbers)

    @classmethod
    def by_topics(cls, subtopologies: Iterable[Subtopology]) -> Self:
        """Return a topology in which the number of each sub-topology depends on its input topics alone.

        The number is a hash (murmur2, 64 bits) of the topics in lexical order: adding or removing another sub-topology
        does not change it. If two have the same hash, the one whose topics are later in lexical order gets a hash with
        the next seed. Raises: ConfigError if two have the same topics, or one has none; as when made.
        Source: KIP-816, "Alternative 2".
        """
        by_topics: dict[tuple[str, ...], Subtopology] = {}
        for subtopology in subtopologies:
            topics = tuple(sorted(subtopology.inputs))
            if not topics:
                raise ConfigError("a sub-topology without input topics can't be numbered by them: declare its inputs")
            if topics in by_topics:
                raise ConfigError(f"two sub-topologies have the input topics {', '.join(topics)}: join them")
            by_topics[topics] = subtopology
        numbers: dict[int, Subtopology] = {}
        for topics, subtopology in sorted(by_topics.items(), key=lambda each: each[0]):
            # No topic's name has a comma.
            text = ",".join(topics).encode()
            number = next(number for seed in count() if (number := murmur2_64(text, seed)) not in numbers)
            numbers[number] = subtopology
        return cls(numbers)

    @classmethod
    def from_dict(cls, content: object) -> Self:
        """Return a topology from its parsed JSON. Raises: ConfigError, TypeError."""
        if not isinstance(content, Mapping) or set(content) != {"subtopologies"}:
            raise ConfigError('a topology is an object with the one field "subtopologies"')
        entries = content["subtopologies"]
        if isinstance(entries, list):
            entries = dict(enumerate(entries))
        if not isinstance(entries, Mapping):
            raise ConfigError('"subtopologies" is an object by number, or a list')
        subtopologies: dict[int, Subtopology] = {}
        for name, fields in entries.items():
            number = _number(name)
            if number in subtopologies:
                raise ConfigError(f"the topology has the sub-topology {number} twice: drop one")
            if not isinstance(fields, Mapping):
                raise ConfigError(f'sub-topology {number} is an object with "stores" and "inputs"')
            unknown = sorted(map(str, fields.keys() - set(_FIELDS)))
            if unknown:
                raise ConfigError(f"sub-topology {number} has no field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
            subtopologies[number] = Subtopology(*(fields.get(name, ()) for name in _FIELDS))
        return cls(subtopologies)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """A topology from a JSON file. Raises: ConfigError, TypeError; StoreUnavailableError if it can't be read."""
        file = checked_path(path)
        with translated_system_errors(file), open(file, "rb") as stream:
            text = stream.read(_BYTES_MAX + 1)
        if len(text) > _BYTES_MAX:
            raise ConfigError(f"{file} has more than {_BYTES_MAX:,} bytes: choose a file with a topology")
        try:
            return cls.from_dict(json.loads(text, object_pairs_hook=_unrepeated))
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{file}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} is not JSON: {error}") from error

    def check_task(self, subtopology: int, stores: Iterable[str], topics: Iterable[str]) -> None:
        """Check that the sub-topology has these stores and, if it names any inputs, these. Raises: ConfigError."""
        own = self.subtopologies.get(subtopology)
        if own is None:
            raise ConfigError(f"the topology has no sub-topology {subtopology}: correct the task's ID, or declare it")
        for store in stores:
            number = self.subtopology_of(store)
            if number != subtopology:
                where = "no sub-topology" if number is None else f"the sub-topology {number}"
                raise ConfigError(
                    f"the store {store!r} belongs to {where} in the topology, and the task is of {subtopology}: "
                    "correct the task's ID, or the topology"
                )
        for topic in topics:
            if own.inputs and topic not in own.inputs:
                raise ConfigError(
                    f"the sub-topology {subtopology} has no input {topic!r}; it has: {', '.join(own.inputs)}"
                )

    def subtopology_of(self, store: str) -> int | None:
        """Return the number of the sub-topology that has the store ``store``, None if there is none."""
        return self._numbers.get(store)

    @property
    def stores(self) -> frozenset[str]:
        """The names of all stores."""
        return frozenset(self._numbers)

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for two topologies with the same sub-topology for each store."""
        return sha256(json.dumps(sorted(self._numbers.items())).encode()).hexdigest()


def _number(name: object) -> int:
    if isinstance(name, str) and len(name) <= 20 and name.isascii() and name.isdecimal() and str(int(name)) == name:
        return int(name)
    if isinstance(name, int) and not isinstance(name, bool):
        return name
    raise ConfigError(f"{name!r} is not a number of a sub-topology: use 0, 1, 2, ...")


def _names(what: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Iterable):
        raise TypeError(f"the {what} of a sub-topology are a list of names, not {type(names).__name__}")
    return tuple(names)


def _check_once(names: tuple[str, ...], what: str) -> None:
    distinct: set[str] = set()
    for name in names:
        if name in distinct:
            raise ConfigError(f"a sub-topology names the {what} {name!r} twice: drop one")
        distinct.add(name)


def _unrepeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object. Raises: ConfigError if a name is there twice; Python's reader would keep the last."""
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        raise ConfigError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice: drop one of them")
    return content
