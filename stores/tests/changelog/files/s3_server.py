"""A server of S3 on loopback, in its own process: ``python s3_server.py`` prints its port, and ends with its input.

It answers one request at a time. So its conditional put is one step, as that of S3 is.
"""

from __future__ import annotations

import os
import sys
import threading


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    # The collection of tests imports this module for its path. These two take half a second.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    threading.Thread(target=end_with_input, daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()
