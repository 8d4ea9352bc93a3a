"""Answer web requests from a store while its task writes to it: ``python web_readers.py``.

The main thread runs the task. Each request is answered on a thread of its own, from a view at READ_COMMITTED: it sees
whole commits, and never waits for one.
"""

from __future__ import annotations

import http.client
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

from stores import IsolationLevel, TopicPartition
from stores.changelog import Record, SqliteChangelog
from stores.tasks import NO_INTERVAL, StoreConfig, StreamTask, TaskContext, TaskId, TaskSettings

CLICKS = TopicPartition("clicks", 0)
NUM_CLICKS, PER_COMMIT = 20_000, 500


def count(record: Record, context: TaskContext) -> None:
    """Count the clicks on one page."""
    counts, page = context.store("counts"), record.key or b""
    counts.put(page, b"%d" % (int(counts.get(page) or b"0") + 1))


def handler_of(task: StreamTask) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers ``GET /PAGE`` with the page's committed count."""

    class Handler(BaseHTTPRequestHandler):
        """Answers one request."""

        def do_GET(self) -> None:
            """Send the count, 0 for a page without clicks."""
            view = task.store("counts", IsolationLevel.READ_COMMITTED)
            answer = view.get(self.path[1:].encode()) or b"0"
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the terminal quiet."""

    return Handler


def ask(port: int, page: str) -> int:
    """Return the count of ``page``, by HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", f"/{page}")
        return int(connection.getresponse().read())
    finally:
        connection.close()


def main() -> None:
    """Process all clicks while two clients ask for the count, and print what they got."""
    with tempfile.TemporaryDirectory() as folder, SqliteChangelog(f"{folder}/log.sqlite") as log:
        log.create_topic(CLICKS.topic)
        with log.producer() as producer:
            for _ in range(NUM_CLICKS):
                producer.send(CLICKS, b"home", b"")
            producer.flush()
        task = StreamTask(
            "clicks",
            TaskId(0, 0),
            state_dir=folder,
            changelog=log,
            stores={"counts": StoreConfig("lmdb-indexed-batch")},
            process=count,
            inputs=[CLICKS],
            settings=TaskSettings(commit_every_records=PER_COMMIT, commit_interval_ms=NO_INTERVAL),
        )
        task.open()
        done = Event()
        answers: list[list[int]] = [[], []]

        def ask_often(answered: list[int], port: int) -> None:
            while not done.is_set():
                answered.append(ask(port, "home"))

        with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(task)) as server:
            serving = Thread(target=server.serve_forever)
            serving.start()
            clients = [Thread(target=ask_often, args=(answered, server.server_port)) for answered in answers]
            for client in clients:
                client.start()
            task.run(commit=True)
            last = ask(server.server_port, "home")
            done.set()
            for client in clients:
                client.join()
            server.shutdown()
            serving.join()
        task.close()
    whole = all(answer % PER_COMMIT == 0 for answered in answers for answer in answered)
    forwards = all(answered == sorted(answered) for answered in answers)
    print(f"the last answer: {last}")
    print(f"{'every' if whole and answers[0] and answers[1] else 'not every'} answer was a whole commit")
    print(f"{'no' if forwards else 'some'} answer was older than the one before")


if __name__ == "__main__":
    main()
