"""The committed records of a topic, as a process reads them that shares no code with the library."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files

from stores.errors import ChangelogError

_PROGRAM = "committed_reader.py"
_DEADLINE_S = 120.0


def committed_records(address: str, topic: str, partitions: int = 1) -> list[tuple[bytes, bytes]]:
    """Return key and value of each committed record of a topic, in the order of each partition.

    The records have keys and values of UTF-8. Raises: ChangelogError if the broker at ``address`` does not answer.
    """
    # As text, so that the program does not import the package in whose folder it is.
    program = files(__package__).joinpath(_PROGRAM).read_text(encoding="utf-8")
    command = [sys.executable, "-c", program, address, topic, str(partitions)]
    try:
        read = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=True)
    except subprocess.TimeoutExpired:
        raise ChangelogError(f"topic {topic!r} at {address} was not read within {_DEADLINE_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise ChangelogError(f"topic {topic!r} at {address} could not be read: {error.stderr.strip()}") from None
    return [(key.encode(), value.encode()) for key, value in json.loads(read.stdout)]
