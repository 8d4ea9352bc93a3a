"""Files of somebody else, beside a subject and in its folder, which making and wiping the subject must not touch."""

from __future__ import annotations

from pathlib import Path

_BESIDE = (".new", ".wiped", ".tmp")
"""How names end that a library is tempted to take for its own."""
_LETTER = b"not the library's"


class Neighbours:
    """Files and folders around ``path``, put there by ``place``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._placed: list[Path] = []

    def place(self, *, inside: bool = False) -> None:
        """Put them there; ``inside``, with a file in the folder ``path``, too."""
        folders = [self._path.with_name(f"{self._path.name}{end}") for end in _BESIDE]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        self._placed = [folder / "letter" for folder in folders]
        if inside:
            self._placed.append(self._path / "letter")
        for file in self._placed:
            file.write_bytes(_LETTER)

    def check(self) -> None:
        """Raises: AssertionError where one of those that were placed is gone, or another."""
        for file in self._placed:
            if not file.is_file() or file.read_bytes() != _LETTER:
                raise AssertionError(f"{file} is a foreign file, and was removed")
