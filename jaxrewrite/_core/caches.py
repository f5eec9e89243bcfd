"""Caches that are bounded, or that die with the object they belong to."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar


_F = TypeVar("_F", bound=Callable[..., Any])

# Those of `cached`.
_clear_functions: list[Callable[[], None]] = []


def clear_caches() -> None:
    """Forget every staged and rewritten program.

    Programs are staged again at their next call, which costs time and nothing else. This
    is for tests, and for long sessions that need the memory.

    Examples
    --------
    >>> import jaxrewrite
    >>> jaxrewrite.clear_caches()
    """
    # The caches are emptied and not dropped, because whoever holds the cache of a live object
    # must still see entries that others put there.
    while True:
        try:
            _filled.pop().clear()
        except KeyError:
            break
    for clear in _clear_functions:
        clear()


class BoundedCache:
    """A mapping with at most ``size`` entries, which drops the least recently used.

    Several threads may use it. Two of them may compute the same entry at once; then the
    later one stays. `clear_caches` empties it.
    """

    __slots__ = ("__weakref__", "_entries", "_lock", "_size")

    def __init__(self, size: int):
        self._size = size
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """Return the entry of ``key``, or ``None``; ``TypeError`` if unhashable."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: Hashable, entry: Any) -> None:
        with self._lock:
            self._entries[key] = entry
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        _filled.add(self)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


# The caches with entries: most objects that have a cache outlive its entries.
_filled: weakref.WeakSet[BoundedCache] = weakref.WeakSet()


def cached(size: int) -> Callable[[_F], _F]:
    """`functools.lru_cache`, which is quicker than a `BoundedCache`, emptied by `clear_caches`."""

    def decorate(fn: _F) -> _F:
        cached_fn: Any = functools.lru_cache(size)(fn)
        _clear_functions.append(cached_fn.cache_clear)
        return cached_fn

    return decorate


def _forget(caches: weakref.ref[WeakCaches], key: int) -> None:
    if (held := caches()) is not None:
        held._of_same.pop(key)


class WeakCaches:
    """A `BoundedCache` for each of some objects, dropped with the object."""

    def __init__(self, size: int):
        self._size = size
        self._caches = weakref.WeakKeyDictionary[Any, BoundedCache]()
        self._of_same: dict[int, BoundedCache] = {}
        self._lock = threading.Lock()

    def of(self, owner: Any) -> BoundedCache:
        """Return the cache of ``owner``, which must be hashable and weakly referable."""
        try:
            return self._caches[owner]
        except KeyError:
            with self._lock:
                return self._caches.setdefault(owner, BoundedCache(self._size))

    def of_same(self, owner: Any) -> BoundedCache:
        """Return the cache of ``owner`` itself, and not of an equal one."""
        key = id(owner)
        with self._lock:
            if key not in self._of_same:
                # The number is free for another object after that, and not before.
                weakref.finalize(owner, _forget, weakref.ref(self), key)
                self._of_same[key] = BoundedCache(self._size)
            return self._of_same[key]
