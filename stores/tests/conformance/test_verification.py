"""``verify`` finds in a store's files what was not written there, and passes over nothing that harms a reader."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from stores import (
    KeyValueStore,
    StoreClosedError,
    StoreCorruptedError,
    StoreIncompatibleError,
    TopicPartition,
    WrongThreadError,
)
from stores.tests.conformance.cases import Case
from stores.tests.store_process import StoreProcess

LOG = TopicPartition("changelog", 0)
SEED = 31
FLIPS_PER_FILE = 20
LARGE_BYTES = 4096
PAIRS = [(b"%05d" % number, Random(number).randbytes(80)) for number in range(400)]


def fill(case: Case, path: Path) -> None:
    with case.open(path) as store:
        store.put_all(PAIRS)
        store.commit({LOG: 7})


def flips(path: Path) -> Iterator[tuple[Path, int]]:
    """Bits of the files that hold data. Seed: ``SEED``."""
    for file in sorted(file for file in (path / "data").iterdir() if file.stat().st_size > LARGE_BYTES):
        choose = Random(f"{SEED} {file.name}")
        yield from ((file, choose.randrange(8 * file.stat().st_size)) for _ in range(FLIPS_PER_FILE))


@pytest.mark.every_durability
def test_a_sound_store_is_verified_beside_what_is_staged_and_nothing_changes(store: KeyValueStore) -> None:
    store.verify()
    store.put_all(PAIRS)
    store.commit({LOG: 7})
    store.put(b"staged", b"1")
    store.delete(PAIRS[0][0])
    store.delete_range(PAIRS[10][0], PAIRS[20][0])
    with store.all() as before:
        store.verify()
        left = [*PAIRS[1:10], *PAIRS[21:], (b"staged", b"1")]
        assert list(before) == left
    store.commit()
    store.verify()
    assert list(store.all()) == left


def test_who_may_not_write_may_not_verify(store: KeyValueStore) -> None:
    errors: list[BaseException] = []

    def verify() -> None:
        try:
            store.verify()
        except WrongThreadError as error:
            errors.append(error)

    thread = Thread(target=verify)
    thread.start()
    thread.join()
    assert [type(error) for error in errors] == [WrongThreadError]
    store.close()
    with pytest.raises(StoreClosedError):
        store.verify()


@pytest.mark.as_is
@pytest.mark.closed_files
def test_a_store_that_is_verified_after_damage_shows_what_was_written_or_says_so(
    case: Case, path: Path, process: StoreProcess
) -> None:
    if not case.backend.persistent:
        return
    fill(case, path)
    noticed = 0
    for file, bit in flips(path):
        copy = path.with_name("damaged")
        shutil.copytree(path, copy)
        content = bytearray(file.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        (copy / file.relative_to(path)).write_bytes(content)
        try:
            process.call("open", case.backend.name, copy, case.durability, case.options)
            process.call("verify")
        except (StoreCorruptedError, StoreIncompatibleError):
            noticed += 1
        else:
            assert process.call("scan") == PAIRS, f"{file.name}, bit {bit}"
            assert process.call("get_many", [key for key, _ in PAIRS]) == [value for _, value in PAIRS]
        process.call("drop")
        shutil.rmtree(copy)
    assert noticed
