"""A worker answers the probes of a service manager, says that it ends, and writes JSON if a property asks for it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from stores.tests.worker.counting_app import app
from stores.tests.worker.places import EmbeddedPlace, Place
from stores.tests.worker.worker_process import WorkerProcess
from stores.tests.worker.worker_thread import running
from stores.worker import Worker
from stores.worker.probes import with_probes
from stores.worker.status import WorkerState, WorkerStatus

WORDS = ["to", "be", "or", "not", "to", "be"]
MODULE = "stores.tests.worker.counting_app"
TOKEN = "a-token-of-letters"


def ask(address: str, path: str, token: str = "") -> tuple[int, str]:
    """Return the status and the body of an answer."""
    request = Request(f"{address}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request, timeout=600) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def asked(path: str, state: WorkerState) -> tuple[str, list[bytes]]:
    """Return what a worker in a state answers, without a server."""
    starts: list[str] = []
    application: Any = with_probes(lambda *_: [b"another path"], lambda: WorkerStatus(state=state))
    body = list(application({"PATH_INFO": path}, lambda line, _: starts.append(line)))
    return "".join(starts), body


@pytest.mark.parametrize(
    ("state", "live", "ready"),
    [
        (WorkerState.STARTING, "200", "503"),
        (WorkerState.RESTORING, "200", "503"),
        (WorkerState.RUNNING, "200", "200"),
        (WorkerState.ENDING, "200", "503"),
        (WorkerState.FAILED, "503", "503"),
    ],
)
def test_the_answer_to_a_probe_is_that_of_the_state(state: WorkerState, live: str, ready: str) -> None:
    assert asked("/livez", state)[0].startswith(live)
    line, [body] = asked("/readyz", state)
    assert line.startswith(ready)
    assert json.loads(body) == {"state": state.value, "tasks": 0, "running": 0}
    assert asked("/stores", state) == ("", [b"another path"])


def test_a_worker_starts_runs_and_ends(place: Place) -> None:
    place.feed(WORDS)
    states = [Worker(app, {**place.properties(), "state.dir": str(place.folder)}).status().state]
    with running(place, {}) as worker:
        states.append(worker.status().state)
        worker.stop()
        states.append(worker.status().state)
    assert states == [WorkerState.STARTING, WorkerState.RUNNING, WorkerState.ENDING]


def test_both_ports_answer_probes_without_the_token_and_every_line_is_json(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(WORDS)
    (tmp_path / "token").write_text(TOKEN)
    own = {"application.server": "0", "application.server.token.file": str(tmp_path / "token"), "metrics.port": "0"}
    settings = {**place.properties(), **own, "log.format": "json", "metrics.recording.level": "DEBUG"}
    with WorkerProcess(tmp_path, "w", settings, verbose=True) as worker:
        worker.await_text("4 tasks, 0 records/s, lag 0")
        server, metrics = (
            "http://" + set(re.findall(pattern, worker.errors)).pop()
            for pattern in (r"queries at ([^ ,]+), ", r"metrics at http://(127\.0\.0\.1:\d+)/metrics")
        )
        for address in (server, metrics):
            for path in ("/livez", "/readyz"):
                status, body = ask(address, path)
                assert (status, json.loads(body)) == (200, {"state": "running", "tasks": 4, "running": 4})
        assert ask(server, "/metrics")[0] == 401
        for status, body in (ask(server, "/metrics", TOKEN), ask(metrics, "/metrics")):
            assert status == 200
            assert "txstores_store_operation_latency_seconds_bucket" in body
        assert worker.terminate() == 0, worker.errors
    lines = [json.loads(line) for line in worker.errors.splitlines()]
    assert [line for line in lines if line.keys() != {"time", "level", "logger", "message"}] == []
    assert {line["logger"] for line in lines} > {"stores.worker"}


def test_the_error_that_ends_a_worker_is_json_with_its_traceback(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(["poison"])
    with WorkerProcess(tmp_path, "w", {**place.properties(), "log.format": "json"}) as worker:
        assert worker.ended() == 1
    last = json.loads(worker.errors.splitlines()[-1])
    assert last["level"] == "ERROR"
    assert "this word can't be counted" in last["message"]
    assert "Traceback" in last["error"]


def test_the_status_line_of_a_worker_that_ends_says_so(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(WORDS)
    with WorkerProcess(tmp_path, "w", place.properties(), application=f"{MODULE}:stalled") as worker:
        worker.await_text("stalled")
        worker.send(signal.SIGTERM)
        worker.await_line(r"counting: ending, [1-4] tasks to close$")
