"""Settings of stores and tasks: properties under Kafka's own names, and the upgrade of a typed store as one value.

Properties are text from a file, or values of a program. An upgrade leads a store in a task from any format to any
other. Source: KIP-258, its first draft.

Formats have numbers: 0 for a store that never was upgraded, and a higher one for each upgrade. Each record of a
changelog bears the number of its format in a header, so records of several formats may lie beside each other. The
store itself keeps its number as a mark.

The number is not in each value of the store ("magic byte"): it would cost space in every value, and a key would have to
be looked up in every format (KIP-258, "Rejected Alternatives"). It is not in the name of the store's folder: the folder
would have to be found by trying names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stores.changelog.interface import Record
from stores.contract.arguments import check_type
from stores.contract.levels import Level
from stores.errors import ConfigError, nearest
from stores.records.record_kind import RecordKind

Properties = Mapping[str, str | int | bool]
SAME = "the same name"
"""The counterpart of a property that Kafka has by the same name and with the same meaning."""


@dataclass(frozen=True)
class Property:
    """A property: what it sets and takes, and its line in the reference (``stores.worker.property_list``)."""

    setting: str
    parse: Callable[[str], Any]
    values: str
    """The values that it takes, as an error names them: "a whole number from 1"."""
    meaning: str
    kafka: str
    """Its counterpart in Kafka: ``SAME``, another name, or "none" with the reason."""
    unit: str = ""
    default: str | None = None
    """Its default as text; None for that of the setting."""


Known = Mapping[str, Property]
"""Properties by name."""
TRUE_OR_FALSE, ANY_NUMBER = "true or false", "a whole number"


def read(properties: Properties, known: Known, prefix: str) -> tuple[dict[str, Any], dict[str, str | int | bool]]:
    """Return the settings by name, and the properties whose names begin with ``prefix``, without it.

    Raises: TypeError; ConfigError for an unknown name, with the nearest one, and for a value that does not fit or
    contradicts another one.
    """
    check_type(properties, Mapping, "properties are a mapping of names to values")
    values: dict[str, Any] = {}
    prefixed = {}
    for name, value in properties.items():
        check_type(name, str, "a property's name is a str")
        if name.startswith(prefix):
            prefixed[name.removeprefix(prefix)] = value
        elif name in known:
            setting = parsed_as(name, value, known[name])
            if values.setdefault(known[name].setting, setting) != setting:
                raise ConfigError(f"property {name}={value} contradicts another name of the same setting: drop one")
        else:
            raise ConfigError(f"no property {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return values, prefixed


def parsed_as(name: str, value: object, known: Property) -> Any:
    """Return the parsed value of the property ``name``. Raises: ConfigError, which says what the property takes."""
    if value is None:
        raise ConfigError(f"property {name} is None: give it a value, or drop it")
    try:
        return known.parse(str(value))
    except ConfigError as error:
        raise ConfigError(f"property {name}: {error}") from error
    except (ValueError, KeyError, OverflowError) as error:
        unit = f" ({known.unit})" if known.unit else ""
        raise ConfigError(f"property {name}: {value!r} is not a valid value: give {known.values}{unit}") from error


def one_of(choices: Iterable[str]) -> str:
    """Return the words for the values of a property that is one of ``choices``."""
    return f"one of {', '.join(choices)}"


def boolean(text: str) -> bool:
    """Read ``true`` or ``false``. Raises: KeyError."""
    return {"true": True, "false": False}[text.lower()]


VERSION_MAX = 2**31 - 1

Convert = Callable[[Record, int], Iterable[tuple[bytes, bytes | None]]]
"""Returns a record as the new format has it: pairs of key and value, none or more; None as a value is a tombstone.

Given the record and the number of its format, which is below that of the upgrade. It is called again for the same
record where a store is restored again, and must then return the same. A key that it returns is the record's own, or one
that no record of an earlier format has: compaction keeps the last record of each key, whatever its format."""


class UpgradeMode(Level):
    """The way in which a store is upgraded to a newer format. Source: KIP-258, first draft, ``upgrade.mode``."""

    IN_PLACE = "in_place"
    """The new store is built beside the old one, in the same task's folder, and then takes its place."""
    ROLL_OVER = "roll_over"
    """New instances build the new stores in state directories of their own while the old ones work; then these stop."""


@dataclass(frozen=True, slots=True)
class UpgradeProgress:
    """The progress of an upgrade of ``store``: the new store reflects its changelog up to ``offset``, of offsets below
    ``to_offset``. ``records`` counts those converted or copied since the process began, ``swapped`` says that the new
    store has taken the old one's place."""

    store: str
    to_version: int
    offset: int
    to_offset: int
    records: int
    swapped: bool = False


OnUpgrade = Callable[[UpgradeProgress], None]
"""Called after each step. An exception ends the upgrade, which the next opening continues."""


@dataclass(frozen=True)
class Upgrade:
    """The format ``to_version`` (1 or more), and how records of earlier formats become records of it.

    The task's function reads and writes the format ``to_version``, and ``StoreConfig.records`` is that of it. Keep the
    upgrade in the configuration for good: it names the present format, and converts what the changelog has of others.

    With ``online`` the function still has the format before: that of the upgrade ``before``, or 0. The new store is
    built in steps after the task's commits, of the kind ``records``. The next opening without ``online`` builds the
    rest and lets it take the old one's place. Only for stores on disk.

    Checked when made. Raises: TypeError, ConfigError.
    """

    to_version: int
    convert: Convert
    online: bool = False
    records: RecordKind | None = None
    """With ``online``: what the new store holds; None for bytes."""
    before: Upgrade | None = None
    """With ``online``: the upgrade by which the present format came; None for format 0."""
    proxy: Callable[[Any], Any] | None = None
    """With ``online``: makes of the store, or of a view of it, what the function and readers get instead. So a function
    that has the new format may work on the old store. Source: KIP-258, first draft, ``StoreUpgradeBuilder``."""
    swap_running: bool = False
    """With ``proxy``: the new store takes the old one's place after a commit of the running task, as soon as it is at
    the changelog's end. Function and readers then get the new store itself, of the kind ``records``; references to
    ``context.store`` or ``task.store`` stay valid. A scan that is open ends in StoreClosedError.

    Without it the next opening swaps: a function that has the old format cannot go on with the new store."""
    rewrite_changelog: bool = False
    """Log everything in the changelog again in the present format, and drop what was there before. It is done when the
    task is opened with that format, before the first record, if any record is of an earlier one. It takes time and
    room for all of the changelog. ``convert`` is not called any more after that.

    A topic of Kafka with the cleanup policy ``compact`` alone keeps the old records until the brokers compact it. Over
    Kafka it has to end within ``transaction.timeout.ms``, which is 15 minutes here unless the client's settings have
    another."""
    on_upgrade: OnUpgrade | None = None

    def __post_init__(self) -> None:
        for name, (kind, what) in _FIELDS.items():
            check_type(getattr(self, name), kind, f"{name} is {what}")
        if not 1 <= self.to_version <= VERSION_MAX:
            raise ConfigError(f"to_version is 1 to {VERSION_MAX}, not {self.to_version}")
        if self.swap_running and self.proxy is None:
            raise ConfigError(
                "swap_running of an Upgrade needs a proxy: only a function for the new format can continue after the "
                "swap"
            )
        if not self.online and any(field is not None for field in (self.records, self.before, self.proxy)):
            raise ConfigError("records, before and proxy of an Upgrade need online=True: set it, or drop them")
        if self.before is not None and not (self.before.to_version < self.to_version and not self.before.online):
            raise ConfigError(
                f"the upgrade before that to version {self.to_version} leads to a lower version and is not online"
            )

    @property
    def present(self) -> Upgrade | None:
        """The upgrade to the format that the task's function has; None for format 0."""
        return self.before if self.online else self


_FIELDS: Mapping[str, tuple[Any, str]] = {
    "to_version": (int, "an int"),
    "convert": (Callable, "a function of a record and a version"),
    "online": (bool, "a bool"),
    "records": (RecordKind | None, "a kind of stores.records"),
    "before": (Upgrade | None, "an Upgrade"),
    "on_upgrade": (Callable | None, "a function of the progress"),
    "proxy": (Callable | None, "a function of a store"),
    "swap_running": (bool, "a bool"),
    "rewrite_changelog": (bool, "a bool"),
}
"""The type of each field of an upgrade, and what it is in words."""
