"""The paths /livez and /readyz: a service manager asks them whether to restart a worker, and whether to wait for it.

Source: Kubernetes, "Liveness, Readiness, and Startup Probes"; its own API server has these paths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication

from stores.worker.status import WorkerState, WorkerStatus

LIVE, READY = "/livez", "/readyz"


def with_probes(application: WSGIApplication, status: Callable[[], WorkerStatus]) -> WSGIApplication:
    """Return an application that answers the probes from ``status``, and passes other paths on.

    The answer is 200 or 503, and in JSON the state and the numbers of tasks. It has nothing of the stores.
    """

    def answer(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path not in (LIVE, READY):
            return application(environ, start)
        now = status()
        good = now.state is not WorkerState.FAILED if path == LIVE else now.state is WorkerState.RUNNING
        facts = {"state": now.state, "tasks": len(now.tasks), "running": now.running}
        content = json.dumps(facts).encode() + b"\n"
        headers = {
            "Content-Type": "application/json",
            "Cache-Control": "no-store",
            "Content-Length": str(len(content)),
        }
        start("200 OK" if good else "503 Service Unavailable", list(headers.items()))
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [content]

    return answer
