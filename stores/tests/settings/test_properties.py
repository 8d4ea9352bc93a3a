"""Properties become settings, and none is passed over without an error."""

from __future__ import annotations

import pytest

from stores.errors import ConfigError
from stores.settings import read

KNOWN = {"size": ("size_bytes", int), "size.bytes": ("size_bytes", int)}


def test_two_names_of_one_setting_may_only_say_the_same() -> None:
    assert read({"size": "1", "size.bytes": 1, "store.x": "2"}, KNOWN, "store.") == ({"size_bytes": 1}, {"x": "2"})
    for first, second in (("size", "size.bytes"), ("size.bytes", "size")):
        with pytest.raises(ConfigError):
            read({first: "1", second: "2"}, KNOWN, "store.")
