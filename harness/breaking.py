"""Broken code in the place of sound code, in this process alone: how mutants and sabotages are built in."""

from __future__ import annotations


def replace(owner: object, name: str, broken: object) -> None:
    """Let ``owner``, a module or a class, have ``broken`` under ``name``, for as long as the process lives.

    Raises: AttributeError where it has nothing there: what has moved takes its mutant along, which else breaks nothing.
    """
    getattr(owner, name)
    setattr(owner, name, broken)
