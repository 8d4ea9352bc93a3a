"""A state on S3, through a real server of S3 on loopback, with the conditional put of the documentation.

The server has an environment of its own, which ``make test-long`` sets up.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from stores.changelog.files import Retention, VersionLog
from stores.errors import ConfigError
from stores.spark.__main__ import main
from stores.tests.changelog.files import s3_server
from stores.tests.changelog.files.log_model import DESCRIPTION, append, changes, header, restored, state_at
from stores.tests.spark.counting import close_all, compute, expected, expected_rows, plan

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[4]
DOCUMENT = ROOT / "docs/spark.md"
SERVER_PYTHON = ROOT / ".venv-long/bin/python"
STATE = "s3://states/counts"
PutIfAbsent = Callable[[str, bytes], bool]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with an empty bucket: the variables by which it is found, and ``REQUESTS``, the file of its log."""
    requests = tmp_path_factory.mktemp("s3") / "requests"
    credentials = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}
    credentials |= {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    command = [str(SERVER_PYTHON), s3_server.__file__]
    with (
        open(requests, "ab") as log,
        subprocess.Popen(
            command, env=os.environ | credentials, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            credentials["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{int(process.stdout.readline())}"
            credentials["REQUESTS"] = str(requests)
            yield credentials
        finally:
            process.stdin.close()


@pytest.fixture
def put(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> PutIfAbsent:
    """The function of the documentation, and an empty bucket."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="states")
    for entry in client.list_objects_v2(Bucket="states").get("Contents", ()):
        client.delete_object(Bucket="states", Key=entry["Key"])
    [code] = [
        block for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if "boto3" in block
    ]
    puts: dict[str, PutIfAbsent] = {}
    exec(code, puts)
    return puts["put_if_absent"]


def test_a_log_on_s3_keeps_versions_snapshots_and_rows(put: PutIfAbsent) -> None:
    rule = Retention(snapshot_versions=3, keep_versions=3)
    log = VersionLog.open_or_create(STATE, DESCRIPTION, retention=rule, put_if_absent=put).partition(0)
    for version in range(10):
        append(log, version)
    listing = log.listing()
    assert listing.newest == 9
    assert listing.snapshots
    assert min(listing.versions) > 0
    for version in range(6, 10):
        assert restored(log, None, version) == state_at(version)
    assert VersionLog.open(STATE).partition(0).listing() == listing


def test_of_writers_at_the_same_time_one_wins(put: PutIfAbsent) -> None:
    log = VersionLog.open_or_create(STATE, DESCRIPTION, put_if_absent=put).partition(0)
    with ThreadPoolExecutor(6) as threads:
        writers = [threads.submit(log.append, header(0, f"{number:016x}"), changes(0)) for number in range(6)]
    assert len({writer.result().id for writer in writers}) == 1


def test_a_conditional_put_is_needed_to_write_and_not_to_read(put: PutIfAbsent) -> None:
    with pytest.raises(ConfigError):
        VersionLog.open_or_create(STATE, DESCRIPTION)
    VersionLog.open_or_create(STATE, DESCRIPTION, put_if_absent=put)
    log = VersionLog.open(STATE)
    assert log.newest_complete() is None
    with pytest.raises(ConfigError):
        log.partition(0).append(header(0), changes(0))


def test_batches_count_once_with_their_state_on_s3(
    put: PutIfAbsent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = VersionLog.open_or_create(STATE, {"partitions": 2}, put_if_absent=put)
    query_plan = replace(plan(tmp_path), location=STATE, log_id=log.id, put_if_absent=put)
    for number in range(6):
        assert compute(query_plan, number) == expected_rows(number)
        assert compute(query_plan, number) == expected_rows(number)
        if number % 2:
            close_all()
            query_plan = replace(query_plan, local=str(tmp_path / f"local {number}"))
    close_all()
    last = VersionLog.open(STATE).partition(0)
    values = {key.decode(): value for piece in last.restore(None, 5) for _, _, key, value in piece.records}
    assert values.keys() == expected(5).keys()
    assert main(["inspect", STATE]) == 0
    assert "5" in capsys.readouterr().out.splitlines()[-2].split()
