"""Names that would be those of other files are refused."""

from __future__ import annotations

import pytest

from stores.errors import ConfigError
from stores.tasks.identifier import check_stores


@pytest.mark.parametrize("name", ["s.new", "s.Removed", "S.WIPED", "s.position"])
def test_a_store_is_not_called_as_a_file_beside_a_store_in_any_case(name: str) -> None:
    """Some file systems do not tell upper from lower case."""
    with pytest.raises(ConfigError):
        check_stores([name])
    check_stores([name.replace(".", "-")])
