"""Names that were replaced still work for a version, with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from stores.engines.memory import MemoryEngine
from stores.tasks import freshest_first, most_caught_up_first


def test_the_former_name_of_most_caught_up_first_works_with_a_warning() -> None:
    sums = {"a": 1, "b": 2}
    with pytest.warns(DeprecationWarning):
        assert freshest_first(sums) == most_caught_up_first(sums) == ["b", "a"]


def test_an_engine_may_have_methods_under_their_former_names(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning) as warned:

        class Former(MemoryEngine):
            @classmethod
            def rehearse(cls, path: Path, options: Mapping[str, object]) -> None:
                path.write_text("probed")

            def settle_families(self) -> None:
                """Do nothing."""

    assert len(warned) == 2
    Former.probe_open(tmp_path / "file", {})
    assert (tmp_path / "file").read_text() == "probed"
    assert Former.select_families is Former.settle_families


def test_an_engine_with_the_present_names_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    class Present(MemoryEngine):
        def select_families(self) -> None:
            """Do nothing."""

    assert Present.select_families is not MemoryEngine.select_families
    assert not recwarn.list
