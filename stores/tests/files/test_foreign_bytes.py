"""Each reader of a small file ends in an error of ours that names the file, whatever the file has.

The content is random bytes, or a valid file of which a part is replaced, with a new checksum where the file has one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.changelog.file_group import CopyNotes
from stores.changelog.files import Header, StoreChanges, VersionLog
from stores.changelog.files.format import MAGIC, METADATA, TRAILER, encoded
from stores.errors import StoreError
from stores.files.identity import Identity
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.spark.watermark import next_watermark_of, watermark_of
from stores.strategies.spilled import DamagedMarkerError, Marker
from stores.tasks import Topology
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile
from stores.tasks.directory.placement import Move
from stores.tasks.directory.relocation_journal import Journal
from stores.tasks.directory.state_directory import StateDirectory
from stores.tasks.directory.store_places import read_layout
from stores.tasks.directory.unnamed_stores import note_kept
from stores.tasks.identifier import StorePartition, TaskId
from stores.worker import Application, Processor
from stores.worker.settings import WorkerSettings, read_properties

LMDB = "lmdb-indexed-batch"
VERSION = Header("version", "0" * 16, 0, 0, query="q", rows=f"v000000000000-{'0' * 16}.rows.arrows", num_rows=1)
APP = Application("app", Processor(["in"], lambda record, context: None))


class Reader(NamedTuple):
    """A file, a valid content of it, and its reader."""

    file: str
    valid: Callable[[], Any]
    """The content: a value of JSON, or bytes."""
    read: Callable[[Path], object]
    """Reads it in the folder; without a return value to check."""
    sign: Callable[[Any], bytes] = lambda content: json.dumps(content).encode()
    """Returns the file with the content."""
    prepare: Callable[[Path], object] = lambda folder: None


def summed(content: Any, *, sort: bool = True) -> bytes:
    if not isinstance(content, dict):
        return json.dumps(content).encode()
    plain = {name: value for name, value in content.items() if name != "checksum"}
    checksum = crc32(json.dumps(plain, sort_keys=True).encode())
    return json.dumps({**plain, "checksum": checksum}, sort_keys=sort).encode()


def _identity(content: Any) -> bytes:
    if isinstance(content, dict):
        text = f"{content.get('backend')} {content.get('format_version')}"
        content = {**content, "checksum": crc32(text.encode(errors="replace"))}
    return json.dumps(content).encode()


def _origin(content: Any) -> bytes:
    stores = content.get("stores") if isinstance(content, dict) else None
    kept = dict(sorted(stores.items())) if isinstance(stores, dict) else stores
    return json.dumps({"stores": stores, "checksum": crc32(json.dumps(kept).encode())}).encode()


def _marker(content: Any) -> bytes:
    text = json.dumps(content)
    return f"{crc32(text.encode()):08x}\n{text}\n".encode()


def _checkpoint(content: Any) -> bytes:
    """A file of Kafka Streams, without a checksum."""
    lines = content if isinstance(content, list) else [content]
    return "\n".join(str(line) for line in [0, len(lines), *lines]).encode(errors="replace") + b"\n"


def _properties(content: Any) -> bytes:
    pairs = content.items() if isinstance(content, dict) else [("state.dir", content)]
    return "\n".join(f"{name}={value}" for name, value in pairs).encode(errors="replace")


def _version(content: Any) -> bytes:
    """A version with another header, and a checksum that fits."""
    import pyarrow as pa

    whole = encoded(VERSION, {"counts": StoreChanges({b"k": b"v"}, {"mark": b"m"})})
    table = pa.ipc.open_stream(BytesIO(whole)).read_all()
    target = BytesIO()
    schema = table.schema.with_metadata({METADATA: json.dumps(content).encode()})
    with pa.ipc.new_stream(target, schema) as stream:
        stream.write_table(table)
    return sealed(target.getvalue())


def sealed(stream: bytes) -> bytes:
    return stream + TRAILER.pack(MAGIC, len(stream), crc32(stream))


def _open_store(folder: Path) -> None:
    with open_store(LMDB, folder / "store", name="s") as store:
        store.verify()


def _make_store(folder: Path) -> None:
    with open_store(LMDB, folder / "store", name="s"):
        pass


def _description() -> Any:
    return {"format": 1, "id": "0" * 32, "description": {"partitions": 1, "stores": {"counts": {"kind": "bytes"}}}}


def _make_log(folder: Path) -> None:
    (folder / "log.json").write_bytes(summed(_description()))
    (folder / "p00000").mkdir()


def _read_log(folder: Path) -> None:
    log = VersionLog.open(folder)
    assert isinstance(log.description["partitions"], int)
    log.partition(0).listing()


def _read_version(folder: Path) -> None:
    log = VersionLog.open(folder).partition(0)
    header, _ = log.read(0)
    assert header.rows is None or "/" not in header.rows
    list(log.restore(None, 0))
    with suppress(StoreError):
        list(log.read_rows(header))


def _journal(state: Path) -> None:
    journal = Journal.read(state)
    if journal is not None:
        journal.carry_out(state)


def _valid_journal() -> Any:
    move = Move("counts", "lmdb", TaskId(1, 2), TaskId(3, 2))
    own = Move("names", "lmdb", TaskId(1, 2), StorePartition("names", 2))
    with TemporaryDirectory() as folder:
        offsets = {move: {"app-counts-changelog": 7}}
        Journal((move, own), {TaskId(1, 2): ("topic",)}, offsets, {move: Origin.CLEAN}).write(Path(folder))
        return json.loads((Path(folder) / ".relocation").read_text())


def _watermark(folder: Path) -> None:
    watermark_of(str(folder), 3, "q")
    next_watermark_of(str(folder))


def _make_watermark(folder: Path) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
        (folder / name / "3").write_text('v1\n{"batchWatermarkMs": 1, "nextBatchWatermarkMs": 2}')
    (folder / "metadata").write_text('{"id": "q"}')


class _Copies:
    directory = "d"

    def progress(self) -> dict[TopicPartition, int]:
        return {}

    def wanted(self, *arguments: object) -> None:
        """Keep none."""


def _copies(folder: Path) -> None:
    CopyNotes(folder, "own", _Copies(), "").read(["other"], frozenset())


READERS = {
    "store.json": Reader(
        "store/store.json", lambda: Identity(LMDB, 1)._asdict(), _open_store, _identity, prepare=_make_store
    ),
    "the mark of an open store": Reader(
        "store/open",
        lambda: {"boot": "b", "pid": 1, "durability": "disk", "tearable": False, "unsynced": False, "synced": "1 2 3"},
        _open_store,
        prepare=_make_store,
    ),
    "the commit marker": Reader(
        "commit",
        lambda: json.loads(
            Marker(7, b"12345678", True, ((b"a", None),), {b"o": b"1", b"c": None}).text().split("\n")[1]
        ),
        lambda folder: Marker.read(folder / "commit"),
        _marker,
    ),
    "the checkpoint file": Reader(
        ".checkpoint",
        lambda: ["app-counts-changelog 3 17", "app-names-changelog 3 -4"],
        lambda folder: CheckpointFile(folder / ".checkpoint").read(),
        _checkpoint,
    ),
    "the origin file": Reader(
        ".origin",
        lambda: {"stores": {"counts": "clean"}},
        lambda folder: OriginFile(folder / ".origin").read(["counts"]),
        _origin,
    ),
    "the journal of a relocation": Reader(".relocation", _valid_journal, _journal, summed),
    "the journal, for the layout": Reader(".relocation", lambda: {"layout": "task"}, read_layout),
    "the note of the layout": Reader(".state-layout", lambda: {"layout": "store-partition"}, read_layout),
    "the process file": Reader(
        "kafka-streams-process-metadata",
        lambda: {"processId": "12345678-1234-1234-1234-123456789012"},
        lambda folder: StateDirectory(folder).process_id(),
    ),
    "the note of kept stores": Reader(
        ".unnamed", lambda: {"1_2/lmdb/counts": 1e9}, lambda folder: note_kept(StateDirectory(folder), [])
    ),
    "the note of standby copies": Reader(
        "copies/other",
        lambda: {"directory": "d", "held": [["t", 1]], "progress": [["t", 2, 3]], "server": "host:1"},
        _copies,
        prepare=lambda folder: (folder / "copies").mkdir(),
    ),
    "a topology": Reader(
        "topology.json",
        lambda: {"subtopologies": {"1": {"stores": ["counts"], "inputs": ["in"]}}},
        lambda folder: Topology.from_file(folder / "topology.json"),
    ),
    "properties": Reader(
        "properties",
        lambda: {
            "changelog.file": "log.sqlite",
            "state.dir": "state",
            "task.timeout.ms": "1",
            "status.interval.ms": "5",
            "statestore.uncommitted.max.bytes": "6",
            "store.backend": "lmdb",
            "application.server": "7070",
        },
        lambda folder: WorkerSettings.from_properties(APP, read_properties(folder / "properties")),
        _properties,
    ),
    "log.json": Reader("log.json", _description, _read_log, summed, _make_log),
    "added.json": Reader(
        "added.json", lambda: {"format": 1, "id": "0" * 32, "stores": {"more": {}}}, _read_log, summed, _make_log
    ),
    "a version": Reader(
        "p00000/v000000000000.arrows", lambda: vars(VERSION).copy(), _read_version, _version, _make_log
    ),
    "metadata of Spark": Reader("metadata", lambda: {"id": "q"}, _watermark, prepare=_make_watermark),
    "offsets of Spark": Reader(
        "offsets/3",
        lambda: {"batchWatermarkMs": 1},
        _watermark,
        lambda content: b"v1\n" + json.dumps(content).encode(),
        _make_watermark,
    ),
    "commits of Spark": Reader(
        "commits/3",
        lambda: {"nextBatchWatermarkMs": 1},
        _watermark,
        lambda content: b"v1\n" + json.dumps(content).encode(),
        _make_watermark,
    ),
}
UNNAMED = {"properties", "metadata of Spark"}
"""The error names the property, or the folder of the checkpoint."""

EDGES: list[Any] = [
    None,
    True,
    0,
    -1,
    1 << 63,
    1 << 64,
    -(10**400),
    float("inf"),
    float("nan"),
    "",
    "../../x",
    "a b",
    "\ud800",
    [],
    {},
]
scalars = st.sampled_from(EDGES) | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
TEXTS = [
    b"",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 5_000,
    b'{"format": ' + b"9" * 5_000 + b"}",
    b"\xff\xfe",
    b"\0" * 64,
]


def replaced(draw: st.DrawFn, content: Any) -> Any:
    """The content with one part of it replaced, dropped or added."""
    if isinstance(content, dict | list) and content and draw(st.integers(0, 3)):
        name = draw(st.sampled_from(sorted(content) if isinstance(content, dict) else range(len(content))))
        how = draw(st.sampled_from(["inside", "inside", "drop", "add"]))
        copy = dict(content) if isinstance(content, dict) else list(content)
        if how == "inside":
            copy[name] = replaced(draw, content[name])
        elif how == "drop":
            del copy[name]
        elif isinstance(copy, dict):
            copy[draw(st.text(max_size=8))] = draw(values)
        else:
            copy.append(draw(values))
        return copy
    return draw(values)


def check(reader: Reader, content: bytes, name: str) -> None:
    """Read the content; only an error of ours may end that, and it names the file."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        reader.prepare(folder)
        (folder / reader.file).write_bytes(content)
        try:
            reader.read(folder)
        except (StoreError, DamagedMarkerError) as error:
            parts = reader.file.split("/")
            assert name in UNNAMED or any(part in str(error) for part in (parts[-1], parts[0])), str(error)


@pytest.mark.parametrize("name", READERS)
def test_a_valid_file_is_read(tmp_path: Path, name: str) -> None:
    """Else all that follows would be refused for a reason that has nothing to do with it."""
    reader = READERS[name]
    reader.prepare(tmp_path)
    (tmp_path / reader.file).write_bytes(reader.sign(reader.valid()))
    reader.read(tmp_path)


def structures(name: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        content = READERS[name].valid()
        for _ in range(data.draw(st.integers(1, 2))):
            content = replaced(data.draw, content)  # type: ignore[arg-type]
        check(READERS[name], READERS[name].sign(content), name)

    tried()


def other_bytes(name: str, examples: int) -> None:
    reader = READERS[name]
    whole = reader.sign(reader.valid())

    @settings(max_examples=examples)
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        content = data.draw(st.binary(max_size=200) | st.just(whole))
        if content is whole:
            at = data.draw(st.integers(0, len(whole) - 1))
            length = data.draw(st.integers(0, 4))
            content = whole[:at] + data.draw(st.binary(max_size=4)) + whole[at + length :]
        check(reader, content, name)

    for text in TEXTS:
        check(reader, text, name)
    tried()


@pytest.mark.parametrize("name", READERS)
def test_a_file_with_another_structure_ends_in_an_error_of_ours(name: str) -> None:
    structures(name, 15)


@pytest.mark.parametrize("name", READERS)
def test_a_file_with_other_bytes_ends_in_an_error_of_ours(name: str) -> None:
    other_bytes(name, 8)


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("tried", [structures, other_bytes])
def test_many_other_files_end_in_an_error_of_ours(name: str, tried: Callable[[str, int], None]) -> None:
    tried(name, 500)
