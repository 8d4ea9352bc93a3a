"""Descriptions as handles of stores: a description that has a name stands for the store that was declared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from stores.errors import ConfigError
from stores.interface import KeyValueView
from stores.records.record_kind import RecordKind
from stores.records.values import RecordStaging

Kinds = Mapping[str, RecordKind | None]
"""The descriptions of stores by name, None for bytes."""
Store_co = TypeVar("Store_co", covariant=True)
View_co = TypeVar("View_co", covariant=True)


class StoreHandle(Protocol[Store_co]):
    """A description, by which a checker of types knows the type of the store."""

    @property
    def name(self) -> str | None:
        """The name of the store."""

    def staged(self, staging: RecordStaging) -> Store_co: ...


class ViewHandle(Protocol[View_co]):
    """A description, by which a checker of types knows the type of a view of the store."""

    @property
    def name(self) -> str | None:
        """The name of the store."""

    def view(self, view: KeyValueView) -> View_co: ...


class StoreTable(dict[object, Any]):
    """The stores of a function by their names, and by the descriptions of their declarations.

    It is a dictionary, because a function asks for its stores with each record: a call of Python would take longer.
    """

    def __init__(
        self,
        owner: str,
        stores: Mapping[str, Any],
        kinds: Kinds,
        views: Mapping[str, Any] | None = None,
    ) -> None:
        """Make it for ``owner``, as errors name it. ``kinds`` has the description of each store.

        ``views`` are those of global stores, which are here by their names alone.
        """
        super().__init__({kinds[name]: store for name, store in stores.items() if name == _name_in(kinds[name])})
        self.update(views or {})
        self.update(stores)
        self._owner, self._stores, self._kinds = owner, stores, kinds

    def __missing__(self, handle: object) -> Any:
        """Return the store of a description that is equal in its properties, but not in its serdes' identity.

        Raises: as ``name_of``.
        """
        return self._stores[self.name_of(handle)]

    def name_of(self, handle: object) -> str:
        """Return the name of a store by a description or a name. Global stores do not count.

        Raises: ConfigError if there is no such store, and for a description that has no name, or is another one than
        that of the declaration; TypeError for anything else.
        """
        name = handle.name if isinstance(handle, RecordKind) else handle
        if name is None:
            raise ConfigError(f"{handle} has no name to ask for a store with: add name=..., or ask by the store's name")
        if not isinstance(name, str):
            raise TypeError(f"a store is asked for by its description or its name, not by {type(handle).__name__}")
        if name not in self._stores:
            names = ", ".join(self._stores) or "none"
            raise ConfigError(f"{self._owner} has no store {name!r}; it has: {names}")
        declared = self._kinds[name]
        if isinstance(handle, RecordKind) and (declared is None or not declared.describes_same(handle)):
            raise ConfigError(
                f"store {name!r} was declared as {'bytes' if declared is None else declared}, not as {handle}: ask for "
                "it by the description that it was declared with"
            )
        return name


def _name_in(kind: RecordKind | None) -> str | None:
    return None if kind is None else kind.name
