"""The commands for stores on disk: ``txstores inspect|dump|verify|offsets|backup|compact|wipe PATH``.

Exit status: 0 for success, 1 if ``verify`` finds damage, 2 for everything that can't be done, with the reason.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from stores.changelog.files import VersionLog
from stores.changelog.files.inspection import DESCRIPTION_FILE, lines_of
from stores.changelog.files.inspection import facts_of as facts_of_versions
from stores.changelog.schema import is_changelog
from stores.engines.sqlite.tables import FILE
from stores.errors import ConfigError, StoreCorruptedError, StoreError, nearest
from stores.files.creation import is_store, is_unfinished, wipe
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import StoreDirectory
from stores.interface import TopicPartition
from stores.read_only.held_store import DiskStore, held, stores_below
from stores.registry import open_store
from stores.shell.decoding import SERDES, Decoder, Line, as_json, as_text, mark_shown
from stores.shell.disk_store import Reading, back_up, check_removable, reading, strongest
from stores.shell.sqlite_files import facts_of, records_of, tables_of

DAMAGED, REFUSED, INTERRUPTED = 1, 2, 130
_SINGULAR = {"marks": "mark", "tables": "table", "schema": "schema"}


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to those of a parser. Each sets ``run``, which returns the exit status."""

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str, what: str = "the folder of a store"
    ) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.add_argument("path", type=Path, metavar="PATH", help=what)
        parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
        parser.set_defaults(run=run)
        return parser

    parts = (
        "show what a store is, its offsets, its size and its marks, or the partitions of a changelog, changing nothing"
    )
    either = "the folder of a store, or the file of an embedded changelog"
    others = "a state directory for the stores below it, or the state of a stateful query on Spark"
    inspect = command("inspect", _inspect, parts, f"{either}, or {others}")
    inspect.add_argument("--tables", action="store_true", help="add the tables of a SQLite file (extra inspection)")
    dump = command(
        "dump",
        _dump,
        "print the committed records of a store in key order, or all of a changelog, changing nothing",
        either,
    )
    dump.add_argument("--key", choices=SERDES, help="decode keys; by default as the store describes them")
    dump.add_argument("--value", choices=SERDES, help="decode values; by default as the store describes them")
    dump.add_argument("--all", action="store_true", help="also print what has expired")
    dump.add_argument("--limit", type=_count, metavar="N", help="print at most N records")
    command("verify", _verify, "read a closed store whole and check it for damage; status 1 if there is any")
    command("offsets", _offsets, "print the committed changelog offsets and the input position of a store")
    backup = command("backup", _backup, "copy a store to an empty folder, at one commit, and verify the copy")
    backup.add_argument("target", type=Path, metavar="TARGET", help="the folder of the backup, missing or empty")
    command("compact", _compact, "recover a closed store and rewrite its files without unused space")
    removal = command("wipe", _wipe, "remove a closed store, which its task then restores from its changelog")
    removal.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def run_guarded(run: Callable[[], int], *, when_closed: int = 0) -> int:
    """Return the status of ``run``, or ``when_closed`` if the reader of the output has closed it.

    An error or an interruption is reported with a sentence instead of a traceback. What the output's encoding cannot
    express, such as a path that is no UTF-8, is printed with backslashes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python would report it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return when_closed
    except KeyboardInterrupt:
        print("\nInterrupted; nothing goes on in the background.", file=sys.stderr)
        return INTERRUPTED
    except (StoreError, OSError) as error:
        print(_sentence(error), file=sys.stderr)
        return REFUSED


def _sentence(error: BaseException) -> str:
    sentence = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        sentence = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    notes: list[str] = getattr(error, "__notes__", [])
    return " ".join([f"{sentence.rstrip('.')}.", *notes]) if notes else sentence


def _inspect(args: argparse.Namespace) -> int:
    if (args.path / DESCRIPTION_FILE).is_file():
        return _inspect_versions(args)
    is_log = is_changelog(args.path)
    if not args.tables and (inner := _inner_stores(args.path)):
        for store in inner:
            print((as_json if args.json else as_text)(_summary(store)))
        return 0
    facts = facts_of(args.path) if is_log else _facts(args.path)
    if args.tables:
        facts.update(tables_of(args.path if is_log else _sqlite_file(args.path, facts)))
    if args.json:
        print(json.dumps(facts))
        return 0
    for name, fact in facts.items():
        if isinstance(fact, list):
            for entry in fact:
                print(f"{name:24} {' '.join(map(_shown, entry.items()))}")
        elif isinstance(fact, dict):
            for entry_name, text in fact.items():
                print(f"{_SINGULAR[name] + ' ' + entry_name:24} {text}")
        else:
            print(f"{name:24} {fact}")
    return 0


def _inspect_versions(args: argparse.Namespace) -> int:
    """Print the state of a stateful query on Spark."""
    if args.tables:
        raise ConfigError(f"{args.path} is the state of a query and has no tables: leave --tables out")
    facts = facts_of_versions(VersionLog.open(args.path))
    print(json.dumps(facts) if args.json else "\n".join(lines_of(facts)))
    return 0


def _inner_stores(path: Path) -> list[Path]:
    """Return the stores below a folder that is no store itself."""
    with translated_system_errors(path):
        return stores_below(path) if path.is_dir() and not is_store(path) and not is_unfinished(path) else []


def _summary(path: Path) -> Line:
    """Return the line of one store of several: what is known without a look at its data."""
    try:
        with held(path) as store:
            return {
                "path": str(path),
                "backend": store.identity.backend,
                "state": _state(store),
                "size_bytes": _size_bytes(path),
            }
    except StoreError as error:
        return {"path": str(path), "problem": str(error)}


def _state(store: DiskStore) -> str:
    return "open in a process" if store.used_by else "closed" if store.is_clean else "not closed cleanly"


def _sqlite_file(path: Path, facts: Line) -> Path:
    file = path / "data" / FILE
    if not file.exists():
        raise ConfigError(f"{path} is a store of {facts['backend']} and has no tables: leave --tables out")
    return file


def _facts(path: Path) -> Line:
    with held(path) as store, reading(store) as contents:
        families = range(contents.engine.num_families)
        return {
            "path": str(store.path),
            "backend": store.identity.backend,
            "format_version": store.identity.format_version,
            "state": _state(store),
            "approximate_num_entries": sum(contents.engine.approximate_num_entries(family) for family in families),
            "size_bytes": _size_bytes(store.path),
            "offsets": [_offset_line(*entry) for entry in contents.offsets.items()],
            "position": [_offset_line(*entry) for entry in contents.position.items()],
            "marks": {name: mark_shown(mark) for name, mark in contents.marks.items()},
        }


def _shown(part: tuple[str, object]) -> str:
    """Return a part of an entry, with its name where the value alone would not be understood."""
    name, value = part
    return str(value) if name in ("topic", "partition", "offset", "consumer_group") else f"{name}={value}"


def _dump(args: argparse.Namespace) -> int:
    form = as_json if args.json else as_text
    if is_changelog(args.path):
        if args.key or args.value:
            raise ConfigError(f"{args.path} is a changelog, shown in bytes: leave --key and --value out")
        for line in records_of(args.path, args.limit):
            print(form(line))
        return 0
    with held(args.path) as store, reading(store) as contents:
        decoder = Decoder(store.path.name, contents.marks, args.key, args.value)
        for line in islice(_records(contents, decoder, expired=args.all), args.limit):
            print(form(line))
    return 0


def _records(found: Reading, decoder: Decoder, *, expired: bool) -> Iterator[Line]:
    for number, pairs in enumerate(found.pairs):
        plain = number < len(found.pairs) - 1
        for key, value in pairs:
            if decoder.is_of_index(key) or (not expired and decoder.is_expired(key, value, plain=plain)):
                continue
            yield decoder.record(key, value, plain=plain)


def _verify(args: argparse.Namespace) -> int:
    problem = ""
    try:
        with held(args.path) as store:
            store.check_at_rest()
            with reading(store) as contents:
                contents.engine.verify()
    except StoreCorruptedError as error:
        problem = str(error)
    if args.json:
        print(json.dumps({"path": str(args.path), "sound": not problem, "problem": problem or None}))
    elif problem:
        print(problem, file=sys.stderr)
    else:
        print(f"{args.path} is sound.")
    return DAMAGED if problem else 0


def _offsets(args: argparse.Namespace) -> int:
    with held(args.path) as store, reading(store) as contents:
        kinds = (("offset", contents.offsets), ("position", contents.position))
        lines = [{"kind": kind, **_offset_line(*entry)} for kind, entries in kinds for entry in entries.items()]
    for line in lines:
        print((as_json if args.json else as_text)(line))
    return 0


def _backup(args: argparse.Namespace) -> int:
    with held(args.path) as store:
        back_up(store, args.target)
    with held(args.target) as copy, reading(copy) as contents:
        offsets = [_offset_line(*entry) for entry in contents.offsets.items()]
    text = f"{args.target} is a backup of {args.path}. To restore it, open it, or copy it to the store's place."
    return _done(args, text, backup=str(args.target), offsets=offsets)


def _compact(args: argparse.Namespace) -> int:
    with held(args.path) as store:
        if store.used_by is not None:
            raise store.used_by
    before = _size_bytes(store.path)
    _compact_files(store)
    after = _size_bytes(store.path)
    text = f"{args.path} had {before:,} bytes and has {after:,}."
    return _done(args, text, bytes_before=before, bytes_after=after)


def _wipe(args: argparse.Namespace) -> int:
    check_removable(args.path)
    if not args.yes and not _confirmed(f"Remove the store in {args.path}? Its task restores it from its changelog."):
        print("Nothing was removed.", file=sys.stderr)
        return REFUSED
    wipe(args.path)
    return _done(args, f"The store in {args.path} is removed.", removed=True)


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody can be asked here: give --yes")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _done(args: argparse.Namespace, text: str, **facts: object) -> int:
    print(json.dumps({"path": str(args.path), **facts}) if args.json else text)
    return 0


def _compact_files(store: DiskStore) -> None:
    name, engine = store.identity.backend, store.backend.load_engine()
    # Opening recovers: afterwards the engine's files are complete by themselves.
    open_store(name, store.path, durability=strongest(store)).close()
    directory = StoreDirectory.lock_existing(store.path, name)
    try:
        engine.compact(directory.data, engine.options)
    finally:
        directory.release()


def _offset_line(partition: TopicPartition, offset: int) -> Line:
    return {"topic": partition.topic, "partition": partition.partition, "offset": offset}


def _size_bytes(path: Path) -> int:
    """Return the space that the files below ``path`` take on disk."""
    with translated_system_errors(path):
        return sum(_blocks(file) for file in path.rglob("*")) * 512


def _blocks(file: Path) -> int:
    # The engine of another process may remove a file at any time.
    with suppress(FileNotFoundError):
        status = file.stat()
        return status.st_blocks if stat.S_ISREG(status.st_mode) else 0
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(sys.maxsize)):
        raise argparse.ArgumentTypeError(f"a whole number from 0 is needed, not {text!r}")
    return min(int(text), sys.maxsize)


def check_command(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser], argv: Sequence[str]
) -> None:
    """End the process with status 2 if the first argument is no option and none of ``commands``."""
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        parser.error(f"no command {argv[0]!r}{nearest(argv[0], commands)}; there are: {', '.join(commands)}")
