"""Wrong arguments of ``stateful`` that need no Spark to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from stores.errors import ConfigError
from stores.spark.arguments import check_idle, configs_of


@pytest.mark.parametrize("stores", [["counts"], "counts", None])
def test_stores_without_names_are_refused(stores: Any) -> None:
    with pytest.raises(TypeError):
        configs_of(stores, times=False)


@pytest.mark.parametrize(("streaming", "timers"), [(True, False), (False, True), (False, False)])
def test_only_a_streaming_query_with_timers_has_batches_without_rows(streaming: bool, timers: bool) -> None:
    with pytest.raises(ConfigError, match="fire_when_idle"):
        check_idle(True, streaming=streaming, timers=timers)
    check_idle(True, streaming=True, timers=True)
    check_idle(False, streaming=streaming, timers=timers)
