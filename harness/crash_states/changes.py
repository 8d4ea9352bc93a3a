"""The change that one effect makes: to the names of a file, or to its bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from harness.crash_states.contents import Content
from harness.io_trace.recording import Effect, Kind

Entry = tuple[int, str]
"""A folder's number, and a name in it."""


@dataclass(frozen=True, slots=True)
class NameChange:
    """A change of names: the entries ``removed``, and the entry ``added``, which names ``file`` from now on."""

    index: int
    file: int
    removed: tuple[Entry, ...]
    added: Entry | None
    creates: bool
    bit: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bit", 1 << self.index)

    @property
    def folders(self) -> frozenset[int]:
        """The folders whose entries it changes."""
        return frozenset(folder for folder, _ in (*self.removed, *((self.added,) if self.added else ())))

    def apply(self, names: dict[Entry, int]) -> None:
        for entry in self.removed:
            names.pop(entry, None)
        if self.added is not None:
            names[self.added] = self.file


@dataclass(frozen=True, slots=True)
class DataChange:
    """A change of the bytes or the size of ``file``. ``grows`` is True if it made the file longer.

    ``gap`` is the distance from the old end to the beginning of the write.
    """

    index: int
    file: int
    effect: Effect
    grows: bool
    gap: int = 0
    bit: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bit", 1 << self.index)

    def is_of(self, patterns: tuple[str, ...]) -> bool:
        """Return True if the file's path at the time of the change matches ``patterns``."""
        return matches(self.effect.path, patterns)

    def apply(self, content: Content) -> Content:
        effect = self.effect
        if effect.kind is Kind.WRITE:
            return content.written(effect.offset, effect.data)
        if effect.kind is Kind.TRUNCATE:
            return content.resized(effect.length)
        return content.resized(max(content.size, effect.offset + effect.length))


Change = NameChange | DataChange


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Return True if ``path`` matches one of ``patterns``, in which ``*`` stands for any text, ``/`` too."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)
