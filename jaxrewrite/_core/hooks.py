"""The ways in: how other rooms, and other libraries, take part in what the core does.

Each way is a protocol and a function that registers an object of it. The core and the room of
staging ask what is registered, and know nothing of what it is for.
"""

from __future__ import annotations

from typing import Any, Protocol


class ClassHook(Protocol):
    """Is told of each class of values.

    Another library may have a table of classes, such as that of a serialiser.
    """

    def is_ready(self) -> bool:
        """Whether it can be told of classes. The other library may not be imported yet."""
        ...

    def defined(self, cls: type) -> None:
        """Take note of a class that has become a pytree."""
        ...


class StagingHook(Protocol):
    """Looks at what a function does to its arguments besides what it returns.

    A function is staged on copies of its arguments. What it stores in the copies, such as new
    statistics of a layer, becomes a result of the program, and is stored in the caller's
    arguments after each call.
    """

    def before(self, tree: Any) -> Any:
        """What to look at in a pytree of ``(fn, args, kwargs)``, before ``fn`` is called."""
        ...

    def after(self, state: Any) -> Any:
        """What has changed since: a pytree of arrays and values; a false one if nothing has.

        ``state`` is what `before` returned.
        """
        ...

    def store(self, tree: Any, changed: Any) -> None:
        """Store in the caller's arguments what `after` returned, now with its arrays."""
        ...


staging_hooks: list[StagingHook] = []

_classes: list[type] = []
_ready: list[ClassHook] = []
# The hooks that were not ready when they were asked last.
_waiting: list[ClassHook] = []


def register_class_hook(hook: ClassHook) -> None:
    """Tell a hook of all classes of values, those that exist already among them.

    If it is not ready, it is asked again whenever a user makes a value.
    """
    _waiting.append(hook)
    ask_waiting()


def register_staging_hook(hook: StagingHook) -> None:
    """Let a hook see each function that is staged from now on."""
    staging_hooks.append(hook)


def class_defined(cls: type) -> None:
    """Tell the hooks of a class that has become a pytree."""
    _classes.append(cls)
    for hook in _ready:
        hook.defined(cls)


def value_made() -> None:
    """Ask the hooks that are waiting, since a user has made a value."""
    if _waiting:
        ask_waiting()


def ask_waiting() -> None:
    for hook in [hook for hook in _waiting if hook.is_ready()]:
        _waiting.remove(hook)
        _ready.append(hook)
        for cls in _classes:
            hook.defined(cls)
