"""A file of properties: a line ``name=value`` each. Lines that are empty or begin with # are comments."""

from __future__ import annotations

from os import PathLike

from stores.errors import ConfigError
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import checked_path

_BYTES_MAX = 1 << 20


def read_properties(path: str | PathLike[str]) -> dict[str, str]:
    """Return the properties of a file, by name. Raises: ConfigError; StoreUnavailableError if it can't be read."""
    file = checked_path(path)
    with translated_system_errors(file), open(file, "rb") as opened:
        content = opened.read(_BYTES_MAX + 1)
    if len(content) > _BYTES_MAX:
        raise ConfigError(f"{file} has more than {_BYTES_MAX:,} bytes: choose a file of properties")
    try:
        # Editors on Windows begin a file with a byte order mark.
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text: choose a file of properties") from None
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        # The line itself may have a secret.
        if not equals or not name:
            raise ConfigError(f"{file}, line {number}: not a property. Write it as name=value")
        if name in found:
            raise ConfigError(f"{file}, line {number}: {name} is there twice, drop one")
        found[name] = value
    return found
