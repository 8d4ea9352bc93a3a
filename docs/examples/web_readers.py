"""Answer web requests from a store while its task writes to it: ``python web_readers.py``.

Each request has a thread of its own, and reads a view at READ_COMMITTED: it sees whole commits, and waits for none.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tempfile import TemporaryDirectory

from stores import IsolationLevel, TopicPartition
from stores.changelog import Record, SqliteChangelog
from stores.records import INT64, STR, KeyValue
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext, TaskId, TaskSettings

CLICKS = TopicPartition("clicks", 0)
COUNTS = KeyValue(key=STR, value=INT64, name="counts")
NUM_CLICKS, PER_COMMIT = 20_000, 500


def count(record: Record, context: TaskContext) -> None:
    """Count a click on a page."""
    context.store(COUNTS).update((record.key or b"").decode(), lambda clicks: clicks + 1, 0)


def server_of(task: StreamTask) -> ThreadingHTTPServer:
    """Return a server that answers ``GET /PAGE`` with the page's committed count, 0 for a page without clicks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"%d" % (task.store(COUNTS, IsolationLevel.READ_COMMITTED).get(self.path[1:]) or 0))

        def log_message(self, format: str, *args: object) -> None:
            """Keep the terminal quiet."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def ask_often(port: int) -> list[int]:
    """Ask for the count by HTTP until all clicks are committed; return the answers."""
    numbers = [0]
    while numbers[-1] < NUM_CLICKS:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/home")
        numbers.append(int(connection.getresponse().read()))
    return numbers


if __name__ == "__main__":
    with TemporaryDirectory() as folder, SqliteChangelog(f"{folder}/log.sqlite") as log, log.producer() as producer:
        log.create_topic(CLICKS.topic)
        producer.send_all(CLICKS, [(b"home", b"", -1)] * NUM_CLICKS)
        producer.flush()
        with (
            StreamTask(
                "clicks",
                TaskId(0, 0),
                state_dir=folder,
                changelog=log,
                stores=[COUNTS],
                process=count,
                inputs=[CLICKS],
                settings=TaskSettings(commit_every_records=PER_COMMIT, commit_interval_ms=NO_INTERVAL),
            ) as clicks,
            server_of(clicks) as server,
            ThreadPoolExecutor() as threads,
        ):
            threads.submit(server.serve_forever)
            first, second = (threads.submit(ask_often, server.server_port) for _ in range(2))
            clicks.run(commit=True)
            answers = first.result(), second.result()
            server.shutdown()
    print("the last answer:", answers[0][-1])
    print("each answer was a whole commit:", all(number % PER_COMMIT == 0 for each in answers for number in each))
    print("none was older than the one before:", all(each == sorted(each) for each in answers))
