"""Patches of code in this process alone, with which mutants are built in."""

from __future__ import annotations


def replace(owner: object, name: str, broken: object) -> None:
    """Replace ``name`` of ``owner``, a module or a class, by ``broken`` for the life of the process.

    Raises: AttributeError if ``owner`` has no such name: after a move in the library, the mutant would break nothing.
    """
    getattr(owner, name)
    setattr(owner, name, broken)
