"""Snapshots on S3, through a real server of S3 on loopback, with the conditional put of the documentation."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from stores.changelog import Changelog
from stores.command import main
from stores.errors import ConfigError
from stores.snapshots import Snapshots
from stores.snapshots.objects import FILES
from stores.snapshots.pruning import prune
from stores.tests.changelog.files.test_s3 import PutIfAbsent, put, server  # noqa: F401
from stores.tests.snapshots.snapshotting import lose, objects_in, pairs_of, reopened, send, snap, snapping
from stores.tests.tasks.setup import INDEXED, logged

pytestmark = pytest.mark.long

LOCATION = "s3://states/snapshots"
LISTS = 5


def requests(server: dict[str, str]) -> Counter[str]:  # noqa: F811
    """Return the requests since the last call, by kind."""
    log = Path(server["REQUESTS"])
    lines = re.findall(r'"(?:\x1b\[[\d;]*m)*([A-Z]+) (\S+) HTTP', log.read_text())
    os.truncate(log, 0)
    return Counter("LIST" if "list-type" in target else method for method, target in lines)


@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native", "sqlite-indexed-batch"])
def test_a_lost_store_begins_from_s3(
    tmp_path: Path,
    log: Changelog,
    put: PutIfAbsent,  # noqa: F811
    backend: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    snapshots = Snapshots(LOCATION, put, interval_ms=0, keep=9)
    with closing(snapping(tmp_path, log, backend, snapshots)) as task:
        task.open()
        send(log, pairs_of(range(20_000), b"value" * 20))
        snap(task, log)
        before = task.metrics.stores["s"]
        send(log, pairs_of(range(100), b"other"))
        offset = snap(task, log)
        assert task.metrics.stores["s"].since(before).snapshot_sent_bytes_total < before.snapshot_sent_bytes_total
        send(log, pairs_of(range(5), b"tail"))
        task.run(commit=True)
        offset = max(offset, task.metrics.stores["s"].snapshot_offset or 0)
    lose(tmp_path)
    restored, report = reopened(tmp_path, log, backend, snapshots)
    assert restored == logged(log, "s")
    assert report.snapshot_offset is not None
    assert report.reason is None
    objects = objects_in(snapshots)
    newest = objects.index(objects.indexes()[0])
    assert not objects.put_index(replace(newest, created_ms=newest.created_ms + 1))
    assert main(["snapshots", "verify", LOCATION]) == 0
    assert main(["snapshots", "list", LOCATION]) == 0
    assert str(offset) in capsys.readouterr().out
    assert prune(objects, 1, 0.0).num_indexes > 0
    assert main(["snapshots", "verify", LOCATION]) == 0
    lose(tmp_path)
    assert reopened(tmp_path, log, backend, snapshots)[0] == logged(log, "s")


def test_a_missing_and_a_changed_object_lead_to_the_changelog(
    tmp_path: Path,
    log: Changelog,
    put: PutIfAbsent,  # noqa: F811
) -> None:
    snapshots = Snapshots(LOCATION, put, interval_ms=0, keep=1)
    with closing(snapping(tmp_path, log, "lmdb", snapshots)) as task:
        task.open()
        send(log, pairs_of(range(1_000)))
        snap(task, log)
    objects, client = objects_in(snapshots), boto3.client("s3")
    [name] = objects.indexes()
    key = f"snapshots/{objects.path(FILES, next(objects.index(name).parts()))}"
    content = client.get_object(Bucket="states", Key=key)["Body"].read()
    client.put_object(Bucket="states", Key=key, Body=content[::-1])
    for removes in (False, True):
        if removes:
            client.delete_object(Bucket="states", Key=key)
        lose(tmp_path)
        restored, report = reopened(tmp_path, log, "lmdb-indexed-batch", snapshots)
        assert (restored, report.snapshot_offset) == (logged(log, "s"), None)
        assert report.reason is not None


def test_a_snapshot_is_a_put_for_each_part_and_a_restore_a_get(
    tmp_path: Path,
    log: Changelog,
    server: dict[str, str],  # noqa: F811
    put: PutIfAbsent,  # noqa: F811
) -> None:
    """docs/scale.md has the numbers of requests."""
    snapshots = Snapshots(LOCATION, put, interval_ms=0, keep=2)
    sent = 0
    with closing(snapping(tmp_path, log, INDEXED, snapshots)) as task:
        task.open()
        for value in (b"value" * 200, b"other"):
            send(log, pairs_of(range(30_000), value))
            requests(server)
            snap(task, log)
            before, sent = sent, task.metrics.stores["s"].snapshot_sent_objects_total
            made = requests(server)
            assert made.pop("LIST") <= LISTS
            assert made == {"PUT": sent - before + 1}
    objects = objects_in(snapshots)
    newest = objects.index(objects.indexes()[0])
    lose(tmp_path)
    requests(server)
    reopened(tmp_path, log, INDEXED, snapshots)
    objects_read = len(list(newest.parts())) + 1
    assert requests(server) == {"LIST": 1, "HEAD": objects_read, "GET": objects_read}


def test_s3_without_a_conditional_put_is_refused() -> None:
    with pytest.raises(ConfigError):
        Snapshots("s3://states/snapshots?region=us-east-1")
