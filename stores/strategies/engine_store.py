"""The former base class of strategies. Subclass ``stores.strategies.staging.Staging`` instead."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from stores import position as positions
from stores.batch.merge import Pair
from stores.engines.engine import Engine, Writes
from stores.engines.split import split_or_whole
from stores.files.store_directory import StoreDirectory
from stores.interface import Durability, IsolationLevel, TopicPartition
from stores.ordered.ranges import ScanRange
from stores.strategies.access import Access
from stores.strategies.iterator import Pin
from stores.strategies.staging import Opened, Scanned, Staging, Traits


class EngineStore(Staging):
    """A staging whose subclasses implement the methods below, under their former names."""

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        warnings.warn(
            f"{cls.__name__} is an EngineStore, which is deprecated: subclass stores.strategies.staging.Staging",
            DeprecationWarning,
            stacklevel=2,
        )

    @classmethod
    def over(cls, opened: Opened) -> Staging:
        assert opened.directory is not None or not opened.engine.persistent
        if opened.directory is None:
            return cls(opened.engine, None, opened.traits)
        return cls._over(opened.engine, opened.directory, opened.options, opened.traits)

    @classmethod
    def _over(cls, engine: Engine, directory: StoreDirectory, options: Mapping[str, object], traits: Traits) -> Self:
        return cls(engine, directory, traits)

    @classmethod
    def build(cls, engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> None:
        cls._build(engine, folder, durability, options)

    @classmethod
    def _build(cls, engine: type[Engine], folder: Path, durability: Durability, options: Mapping[str, object]) -> None:
        super().build(engine, folder, durability, options)

    @classmethod
    def folders(cls, directory: StoreDirectory) -> Sequence[Path]:
        return cls._folders(directory)

    @classmethod
    def _folders(cls, directory: StoreDirectory) -> Sequence[Path]:
        return super().folders(directory)

    def __init__(self, engine: Engine, directory: StoreDirectory | None, traits: Traits) -> None:
        access = Access(traits.name, traits.backend, split_or_whole(engine).max_key_bytes, engine.max_value_bytes)
        super().__init__(Opened(engine, directory, {}, traits, access))
        self._directory, self._durability = directory, traits.durability

    @property
    def _engine(self) -> Engine:
        return self.engine

    def _check_open(self) -> None:
        self.access.check_open()

    # The methods of a strategy

    @abstractmethod
    def _stage(self, key: bytes, value: bytes | None) -> None: ...

    @abstractmethod
    def _stage_all(self, writes: dict[bytes, bytes | None]) -> None: ...

    @abstractmethod
    def _stage_range(self, start: bytes | None, end: bytes | None) -> None: ...

    @abstractmethod
    def _commit(self, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]) -> None: ...

    @abstractmethod
    def _rollback(self) -> None: ...

    @abstractmethod
    def _is_clean(self) -> bool: ...

    @abstractmethod
    def _scans(
        self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool
    ) -> list[tuple[Iterator[list[Pair]], Pin]]: ...

    @abstractmethod
    def _get(self, level: IsolationLevel, key: bytes) -> bytes | None: ...

    @abstractmethod
    def _get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def approximate_num_uncommitted_bytes(self) -> int:
        """Return the bytes of keys and values that are staged."""
        return 0

    def uncommitted_memory_bytes(self) -> int:
        """Return the approximate memory of the staged writes."""
        return self.approximate_num_uncommitted_bytes()

    def _write_at_once(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None]) -> None:
        super().write_at_once(layers, meta)

    def _shows_staged(self) -> bool:
        return super().shows_staged()

    def _read_engines(self) -> Mapping[str, int]:
        return super().metrics()

    def _close_staging(self) -> None:
        super().release()

    # The same under the present names

    def stage(self, key: bytes, value: bytes | None) -> None:
        self._stage(key, value)

    def stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        self._stage_all(writes)

    def stage_range(self, start: bytes | None, end: bytes | None) -> None:
        self._stage_range(start, end)

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        cleared = {key: bytes(8) for key, value in meta.items() if value is None}
        offsets: dict[TopicPartition, int | None] = dict.fromkeys(positions.decode(positions.OFFSET, cleared))
        kept = {key: value for key, value in meta.items() if value is not None}
        self._commit(meta, {**offsets, **positions.decode(positions.OFFSET, kept)})

    def rollback(self) -> None:
        self._rollback()

    def is_clean(self) -> bool:
        return self._is_clean()

    def num_bytes(self) -> int:
        return self.approximate_num_uncommitted_bytes()

    def memory_bytes(self) -> int:
        return self.uncommitted_memory_bytes()

    def get(self, level: IsolationLevel, key: bytes) -> bytes | None:
        return self._get(level, key)

    def get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._get_many(level, keys)

    def scans(self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool) -> list[Scanned]:
        return self._scans(level, ranges, reverse=reverse)

    def write_at_once(self, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None]) -> None:
        self._write_at_once(layers, meta)

    def shows_staged(self) -> bool:
        return self._shows_staged()

    def metrics(self) -> Mapping[str, int]:
        return self._read_engines()

    def release(self) -> None:
        self._close_staging()
