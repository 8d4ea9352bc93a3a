"""Wrong arguments of ``stateful`` that need no Spark to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from stores.spark.arguments import configs_of


@pytest.mark.parametrize("stores", [["counts"], "counts", None])
def test_stores_without_names_are_refused(stores: Any) -> None:
    with pytest.raises(TypeError):
        configs_of(stores, times=False)
