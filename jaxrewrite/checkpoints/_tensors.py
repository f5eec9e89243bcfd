"""The tensors of files as a mapping that reads what is looked up, and nothing else."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any


class Tensors(Mapping[str, Any]):
    """The tensors of files by their names, each of which is read when it is looked up.

    ``table`` says by name how to make each. A subclass makes it in ``__getitem__``.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table

    @abstractmethod
    def __getitem__(self, name: str) -> Any: ...

    def __contains__(self, name: object) -> bool:
        # That of `Mapping` looks the name up, which would make the whole weight.
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)
