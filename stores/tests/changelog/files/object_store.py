"""A simulated object store: an object appears whole when its writer closes it, and a put may refuse to replace one.

It is a local file system of ``pyarrow.fs`` below. Its failures are those of a client: an error before the put, and an
answer that is lost after it, which the client repeats.
"""

from __future__ import annotations

import os
from pathlib import Path


class ConditionalPut:
    """``put_if_absent`` of a simulated store."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        """For the next puts: ``refused`` fails before the put, ``lost`` repeats it after its answer was lost."""

    def __call__(self, path: str, content: bytes) -> bool:
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "refused":
            raise OSError("the service is busy")
        placed = self._put(Path(path), content)
        return self._put(Path(path), content) if failure == "lost" else placed

    @staticmethod
    def _put(path: Path, content: bytes) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"..{path.name}.{os.getpid()}")
        aside.write_bytes(content)
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        return True


put_if_absent = ConditionalPut()
"""A function that properties can name."""
