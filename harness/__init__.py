"""The harness: tests and times state stores."""

from importlib.util import find_spec as _find_spec

_library = _find_spec("stores")
if _library is not None and not _library.submodule_search_locations:
    raise ImportError(
        f"{_library.origin} has the name of the library `stores` and hides it: rename it, or run Python with -P"
    )
