"""Recordings written by hand, for tests of what a disk may hold."""

from __future__ import annotations

from random import Random

from harness.crash_states.files import Tree
from harness.crash_states.model import FolderModel
from harness.crash_states.states import Depth, Distinct, State, distinct, positions, states
from harness.io_trace.recorder import IoOperation, Kind

Files = dict[str, bytes]


class Script:
    """A recording that grows by one operation with each call. Files are named by their paths of the moment."""

    def __init__(self) -> None:
        self.operations: list[IoOperation] = []
        self._files: dict[str, int] = {"": 0}
        self._count = 0
        self._made = 0

    @property
    def end(self) -> int:
        """The position behind the last operation."""
        return self._count

    def create(self, path: str) -> Script:
        return self._add(Kind.CREATE, path, file=self._new(path))

    def mkdir(self, path: str) -> Script:
        return self._add(Kind.MKDIR, path, file=self._new(path))

    def write(self, path: str, offset: int, data: bytes, synchronous: bool = False, unkept: bool = False) -> Script:
        return self._add(Kind.WRITE, path, offset=offset, data=data, synchronous=synchronous, unkept=unkept)

    def truncate(self, path: str, length: int) -> Script:
        return self._add(Kind.TRUNCATE, path, length=length)

    def allocate(self, path: str, offset: int, length: int, grows: bool) -> Script:
        return self._add(Kind.ALLOCATE, path, offset=offset, length=length, grows=grows)

    def sync(self, path: str = "") -> Script:
        return self._add(Kind.SYNC, path)

    def datasync(self, path: str) -> Script:
        return self._add(Kind.DATASYNC, path)

    def fail_to_sync(self, path: str) -> Script:
        self.operations.append(IoOperation(self._count, Kind.SYNC_FAILED, self._met(path), path))
        return self

    def sync_all(self) -> Script:
        return self._add(Kind.SYNC_ALL, file=-1)

    def rename(self, path: str, target: str) -> Script:
        file = self._met(path)
        for known in [known for known in self._files if known == path or known.startswith(path + "/")]:
            self._files[target + known[len(path) :]] = self._files.pop(known)
        return self._add(Kind.RENAME, path, file=file, target=target)

    def link(self, path: str, target: str) -> Script:
        self._files[target] = self._met(path)
        return self._add(Kind.LINK, path, target=target)

    def unlink(self, path: str) -> Script:
        return self._add(Kind.UNLINK, path, file=self._files.pop(path, None) or self._new())

    def rmdir(self, path: str) -> Script:
        return self._add(Kind.RMDIR, path, file=self._files.pop(path, None) or self._new())

    def note(self, text: str) -> Script:
        self.operations.append(IoOperation(self._count, Kind.NOTE, text=text))
        return self

    def map_writable(self, path: str) -> Script:
        self.operations.append(
            IoOperation(self._count, Kind.MAP_WRITABLE, file=self._met(path), path=path, length=4096)
        )
        return self

    def _new(self, path: str | None = None) -> int:
        self._made += 1
        if path is not None:
            self._files[path] = self._made
        return self._made

    def _met(self, path: str) -> int:
        return self._files[path] if path in self._files else self._new(path)

    def _add(
        self,
        kind: Kind,
        path: str = "",
        file: int | None = None,
        target: str = "",
        offset: int = 0,
        length: int = 0,
        data: bytes = b"",
        synchronous: bool = False,
        unkept: bool = False,
        grows: bool = False,
    ) -> Script:
        number = self._met(path) if file is None else file
        self.operations.append(
            IoOperation(self._count, kind, number, path, target, offset, length, data, synchronous, unkept, grows)
        )
        self._count += 1
        return self


def writes(count: int) -> Script:
    """So many unsynced writes of a byte each, each to a place of its own."""
    script = Script()
    for place in range(count):
        script.write("a", place, b"1")
    return script


def base(**files: bytes) -> Tree:
    """A folder with these files, all of them durable; ``__`` in a name stands for ``/``."""
    made = Script()
    folders: set[str] = set()
    for name, data in files.items():
        path = name.replace("__", "/")
        folder = path.rpartition("/")[0]
        if folder and folder not in folders:
            folders.add(folder)
            made.mkdir(folder)
        made.create(path).write(path, 0, data)
    tree = Tree()
    for operation in made.operations:
        tree.apply(operation)
    # As from a folder that was read: numbers that no recording gives.
    names = {(-folder, name): -number for (folder, name), number in tree.names.items()}
    return Tree(names, {-number: content for number, content in tree.contents.items()})


def create_another(script: Script, there: list[str]) -> None:
    """Create a file with a name that is new; ``there`` are the names of all files."""
    there.append(f"f/c{script.end}")
    script.create(there[-1])


def rename_any(script: Script, there: list[str], rng: Random) -> None:
    """Rename one of the files ``there``, over another one or to a name that is new."""
    source, target = rng.choice(there), rng.choice([*there, f"d{script.end}"])
    if source != target:
        there.remove(source)
        if target not in there:
            there.append(target)
        script.rename(source, target)


def files(tree: Tree) -> Files:
    """The bytes of each file."""
    return {path: content.read() for path, content in tree.files.items()}


def enumerated(script: Script, at: int, before: Tree, depth: Depth | None = None, seed: int = 7) -> list[State]:
    """The states at one position, as they come."""
    return list(states(script.operations, before, range(at, at + 1), FolderModel.NAMES, seed, depth or Depth()))


def found_at(
    script: Script,
    position: int | None = None,
    before: Tree | None = None,
    model: FolderModel = FolderModel.NAMES,
    depth: Depth | None = None,
    seed: int = 7,
) -> list[Files]:
    """Return the distinct crash states at ``position``, by default the end, without folders."""
    at = script.end if position is None else position
    found = distinct(script.operations, before or Tree(), range(at, at + 1), model, seed, depth or Depth())
    return [files(state.tree) for state in found]


def found_everywhere(
    script: Script, before: Tree | None = None, model: FolderModel = FolderModel.NAMES, seed: int = 7
) -> list[Distinct]:
    """Each distinct state of the whole recording."""
    return list(distinct(script.operations, before or Tree(), positions(script.operations), model, seed))


NO_TEARS = Depth(torn_files=0)
