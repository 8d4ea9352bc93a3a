"""A forwarding store answers as the one below: every name of the contract is forwarded, or is for the subclass."""

from __future__ import annotations

from inspect import Parameter, getattr_static, signature
from typing import Any
from unittest.mock import MagicMock, PropertyMock

import pytest

from stores.forwarding import ForwardingStore
from stores.interface import KeyValueStore

OF_THE_SUBCLASS = {
    *("put", "put_all", "put_many", "put_if_absent", "put_with_marks", "update"),
    *("delete", "delete_many", "delete_range", "set_mark"),
    *("commit", "flush", "rollback", "restore", "advance_position", "persist", "persistence", "close"),
    "with_mark",
}
"""Writes and the ends of transactions, and what may outlive a store that the owner replaces."""
BY_OTHERS = {"all", "reverse_all", "timestamps"}
"""Made of other names of the contract."""
NO_ANSWER = {"verify"}
NAMES = {name for name in dir(KeyValueStore) if not name.startswith("_")}


class Passing(ForwardingStore):
    put = commit = restore = close = MagicMock()


@pytest.mark.parametrize("name", sorted(NAMES - OF_THE_SUBCLASS - BY_OTHERS))
def test_each_answer_is_that_of_the_store_below(name: str) -> None:
    inner = MagicMock(spec=KeyValueStore)
    answer: Any = object()
    attribute = getattr_static(KeyValueStore, name)
    if isinstance(attribute, property):
        setattr(type(inner), name, PropertyMock(return_value=answer))
        assert getattr(Passing(inner), name) is answer
        return
    parameters = [each for each in signature(attribute).parameters.values() if each.name != "self"]
    arguments = [object() for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    keywords = {each.name: object() for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    getattr(inner, name).return_value = answer
    assert getattr(Passing(inner), name)(*arguments, **keywords) is (None if name in NO_ANSWER else answer)
    getattr(inner, name).assert_called_once_with(*arguments, **keywords)


def test_no_name_that_is_for_the_subclass_is_forwarded() -> None:
    assert OF_THE_SUBCLASS <= NAMES
    assert not OF_THE_SUBCLASS & set(vars(ForwardingStore))
