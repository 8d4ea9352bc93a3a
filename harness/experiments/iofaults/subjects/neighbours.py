"""Foreign files, beside a subject and in its folder, that creating and wiping the subject must not touch."""

from __future__ import annotations

from pathlib import Path

_BESIDE = (".new", ".wiped", ".tmp")
"""Endings of names that a library may take for its own."""
_LETTER = b"not the library's"


class Neighbours:
    """Foreign files and folders around ``path``, created by ``place``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._placed: list[Path] = []

    def place(self, *, inside: bool = False) -> None:
        """Create them; with ``inside``, create a file in the folder ``path`` too."""
        folders = [self._path.with_name(f"{self._path.name}{end}") for end in _BESIDE]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        self._placed = [folder / "letter" for folder in folders]
        if inside:
            self._placed.append(self._path / "letter")
        for file in self._placed:
            file.write_bytes(_LETTER)

    def check(self) -> None:
        """Raise AssertionError if a placed file is gone or has changed."""
        for file in self._placed:
            if not file.is_file() or file.read_bytes() != _LETTER:
                raise AssertionError(f"{file} is a foreign file, and was removed")
