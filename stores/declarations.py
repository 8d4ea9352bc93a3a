"""Declarations of stores, the same everywhere: in a task, in a ``Processor``, and on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.records.record_kind import RecordKind

StoreSetting = StoreConfig | RecordKind | str | None
"""The declaration of a store: a description of ``stores.records``, a configuration, the name of a backend, or None for
bytes. All but a configuration take the rest from a default."""
Stores = Mapping[str, StoreSetting] | Iterable[RecordKind | str]
"""Declarations by the names of the stores; or descriptions that have names, and names of stores of bytes."""


def declared(stores: object) -> dict[str, StoreSetting]:
    """Return the declarations by name.

    Raises: TypeError for what is no declaration; ConfigError for a description that has another name than its store,
    or, in a list, none; for a name that comes twice.
    """
    if not isinstance(stores, Mapping):
        return _declared_in_list(stores)
    for name, setting in stores.items():
        check_setting(f"store {name!r}", setting)
        check_name(name, setting)
    return dict(stores)


def _declared_in_list(stores: object) -> dict[str, StoreSetting]:
    if not isinstance(stores, Iterable) or isinstance(stores, str | bytes):
        raise TypeError(f"stores is a mapping of names to declarations, or a list of descriptions, not {stores!r}")
    settings: dict[str, StoreSetting] = {}
    for each in stores:
        name, setting = (each.name, each) if isinstance(each, RecordKind) else (each, None)
        if not isinstance(each, RecordKind | str):
            raise TypeError(f"a list of stores has descriptions and names, not {type(each).__name__}")
        if name is None:
            raise ConfigError(f"{each} has no name: add name=..., or declare it in a mapping by name")
        if name in settings:
            raise ConfigError(f"store {name!r} is declared twice: drop one of the two")
        settings[name] = setting
    return settings


def check_setting(what: str, setting: object) -> None:
    """Check that ``setting`` is a declaration; ``what`` names the store in the error. Raises: TypeError."""
    if setting is not None and not isinstance(setting, StoreConfig | RecordKind | str):
        raise TypeError(
            f"{what} is declared by a description of stores.records, a StoreConfig, the name of a backend, or None for "
            f"bytes, not by {type(setting).__name__}"
        )


def check_name(name: str, setting: StoreSetting) -> None:
    """Check that a description has the name of its store, or none. Raises: ConfigError."""
    kind = setting.records if isinstance(setting, StoreConfig) else setting
    if isinstance(kind, RecordKind) and kind.name not in (None, name):
        raise ConfigError(
            f"store {name!r} is declared by a description with the name {kind.name!r}: give both one name"
        )


def configured(setting: StoreSetting, default: StoreConfig) -> StoreConfig:
    """Return the configuration of a declaration, with the rest from ``default``. Raises: ConfigError."""
    if isinstance(setting, StoreConfig):
        return setting
    if isinstance(setting, RecordKind):
        return replace(default, records=setting)
    if setting is None or setting == default.backend:
        return default
    return replace(default, backend=setting, options={})


def configurations(stores: object, default: StoreConfig) -> dict[str, StoreConfig]:
    """Return the configurations of the stores that ``stores`` declares. Raises: as ``declared`` and ``configured``."""
    return {name: configured(setting, default) for name, setting in declared(stores).items()}
