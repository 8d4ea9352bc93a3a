"""Membership test: files that were found are compared with the persistence model, which says if they are legal.

``states`` generates some legal states. Here any tree, as a real file system leaves it, is compared with all of them, by
sector:
  * each file has a size that some selection of its pending changes gives it, a write torn at a sector or not;
  * each of its sectors has a value that it has had since it was last durable; that is zeros where the file grew;
  * its names, and which of them name one file, are those of a legal selection of the pending name changes.
Sectors are compared independently, so several tears of one write are legal here, of which ``choices`` tries one. A
sector that lost a write and kept a later one is not legal here, though ``choices`` tries that too: no cache of whole
sectors does it.

Writes through maps are not recorded. So only names and sizes of mapped files are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.crash_states.changes import Content, DataChange, File, NameChange
from harness.crash_states.files import ROOT, Tree
from harness.crash_states.model import Disk, FolderModel
from harness.crash_states.states import SECTOR_BYTES
from harness.io_trace.recorder import IoOperation, Kind

_CHOICES_MAX = 4096


def why_illegal(
    recording: Sequence[IoOperation], base: Tree, position: int, tree: Tree, folder_model: FolderModel
) -> list[str]:
    """Return the reasons why ``tree`` cannot remain after power loss at ``position``; none if it can.

    If no selection of names is legal, the reasons are those for the selection with the fewest. Raises: as ``Disk``.
    """
    if folder_model is FolderModel.STRICT and not why_illegal(recording, base, position, tree, FolderModel.NAMES):
        return []
    disk = Disk(recording, base, folder_model)
    while disk.position < position:
        disk.advance()
    checker = _Checker(disk, tree, _mapped(recording, base, position))
    fewest: list[str] | None = None
    for kept in _names_kept(disk, tree):
        objections = checker.objections(disk.tree(kept))
        if not objections:
            return []
        if fewest is None or len(objections) < len(fewest):
            fewest = objections
    return fewest or ["no choice of the names that are not durable leaves these"]


class _Checker:
    """Compares the tree that was found with trees of the model. It caches its results for each file."""

    def __init__(self, disk: Disk, found: Tree, mapped: frozenset[int]) -> None:
        self._disk, self._found, self._mapped = disk, found, mapped
        self._paths = dict(found.paths)
        self._known: dict[tuple[int, int], list[str]] = {}

    def objections(self, legal: Tree) -> list[str]:
        """Return the differences from ``legal`` in names, and in bytes that no legal selection explains."""
        paths = dict(legal.paths)
        said = [f"{path} is missing" for path in sorted(paths.keys() - self._paths.keys())]
        said += [f"{path} should not be there" for path in sorted(self._paths.keys() - paths.keys())]
        stands_for: dict[int, int] = {}
        for path in sorted(paths.keys() & self._paths.keys()):
            number, found = paths[path], self._paths[path]
            if stands_for.setdefault(number, found) != found:
                said.append(f"{path} is not the file that its other names are of")
            elif (number in legal.contents) != (found in self._found.contents):
                said.append(f"{path} is a folder where it should be a file, or the other way round")
            elif found in self._found.contents:
                said += [f"{path} {objection}" for objection in self._to_bytes(number, found, legal)]
        return said

    def _to_bytes(self, number: int, found: int, legal: Tree) -> list[str]:
        if (number, found) not in self._known:
            file = self._disk.changed(number) or File(legal.contents[number])
            content = self._found.contents[found]
            said = _to_size(file, content.size)
            if number not in self._mapped:
                said += _to_sectors(file, content)
            self._known[number, found] = said
        return self._known[number, found]


def _to_size(file: File, size: int) -> list[str]:
    sizes = {file.content.size}
    for change in file.changes:
        changed = _sizes_after(change, sizes)
        sizes = changed if change.bit & file.durable_bits else sizes | changed
    return [] if size in sizes else [f"has {size} bytes, which no choice of its changes gives it"]


def _sizes_after(change: DataChange, sizes: set[int]) -> set[int]:
    operation = change.operation
    if operation.kind is Kind.TRUNCATE:
        return {operation.length}
    if operation.kind is Kind.ALLOCATE:
        ends = {operation.offset + operation.length}
    else:
        start, end = min(sizes), operation.offset + len(operation.data)
        ends = {end, *range(start - start % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES)}
    # The larger one of each size and each end.
    return {end for end in ends if end >= min(sizes)} | {size for size in sizes if size >= min(ends)}


def _to_sectors(file: File, content: Content) -> list[str]:
    data = content.read()
    unexplained = list(range(0, len(data), SECTOR_BYTES))
    for version in _versions(file):
        value = version.read().ljust(len(data), b"\0")
        unexplained = [at for at in unexplained if value[at : at + SECTOR_BYTES][: len(data) - at] != _sector(data, at)]
        if not unexplained:
            return []
    told = ", ".join(map(str, unexplained[:5]))
    return [f"has {len(unexplained)} sectors with values they never had since they were durable: at {told}"]


def _sector(data: bytes, at: int) -> bytes:
    return data[at : at + SECTOR_BYTES]


def _versions(file: File) -> Iterator[Content]:
    """Yield the contents that the file has had since it was durable, with all durable changes, the latest first."""
    for number in range(len(file.changes), -1, -1):
        yield file.with_kept(sum(change.bit for change in file.changes[:number]))


def _names_kept(disk: Disk, tree: Tree) -> Iterator[int]:
    """Yield the selections of pending names that are worth a comparison, as bits."""
    names = [change for change in disk.pending() if isinstance(change, NameChange)]
    if disk.folder_model is FolderModel.STRICT:
        yield from _subsets(disk, names, tree)
        return
    kept = sum(change.bit for change in names)
    yield kept
    for change in reversed(names):
        kept ^= change.bit
        yield kept


def _subsets(disk: Disk, names: Sequence[NameChange], tree: Tree) -> list[int]:
    """Return the subsets of ``names`` with the entries that were found, in folders that are certain to exist."""
    paths = {path for path, _ in tree.paths}
    moved = {change.file for change in names}
    folders = {ROOT: ""} | {number: f"{path}/" for path, number in disk.tree(0).paths if number not in moved}
    settled: dict[int, list[tuple[int, str]]] = {}
    for entry in {entry for change in names for entry in _entries(change)}:
        last = max(place for place, change in enumerate(names) if entry in _entries(change))
        if entry[0] in folders:
            settled.setdefault(last, []).append(entry)
    chosen = [0]
    for place, change in enumerate(names):
        left: dict[frozenset[object], int] = {}
        for kept in (kept for before in chosen for kept in (before, before | change.bit)):
            made = disk.tree(kept).names
            if all((entry in made) == (folders[entry[0]] + entry[1] in paths) for entry in settled.get(place, ())):
                left.setdefault(frozenset(made.items()), kept)
        chosen = list(left.values())
        if len(chosen) > _CHOICES_MAX:
            raise ValueError(f"{len(names)} names are not durable: too many to try every choice of them")
    return chosen


def _entries(change: NameChange) -> tuple[tuple[int, str], ...]:
    return (*change.removed, *((change.added,) if change.added else ()))


def _mapped(recording: Sequence[IoOperation], base: Tree, position: int) -> frozenset[int]:
    """Return the files that had been mapped shared and writable before ``position``."""
    tree, mapped = base.copy(), set()
    for operation in recording:
        if operation.kind is Kind.MAP_WRITABLE:
            if operation.index <= position:
                mapped.add(tree.number(operation))
        elif operation.kind is not Kind.NOTE and operation.index < position:
            tree.apply(operation)
    return frozenset(mapped)
