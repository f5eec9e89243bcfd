"""The ways in: how other rooms, and other libraries, take part in what the core does.

Each way is a protocol and a list of what takes part. The core and the room of staging ask what is
in the lists, and know nothing of what it is for. `jaxrewrite.extend` adds what users register.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol

from .._compat import AnyJaxpr, Atom, Jaxpr, JaxprEqn, Primitive, Tree, Var
from .dead_code import DataFlow


if TYPE_CHECKING:
    from .rewrite import Rewriter
    from .traces import Rewriting


class Policy(Protocol):
    """Decides where values become dense, beside the policies that have a name alone.

    It is hashable and equal to policies that decide alike, because the caches of programs have
    it in their keys. Where a value has to become dense it does so without a warning, unless the
    type has a policy of its own.
    """

    def rewriter(self, rewriting: Rewriting) -> Rewriter:
        """An empty builder for a program, or for a body inside of one.

        Its class may override `Rewriter.run`, which is given a whole jaxpr and its operands,
        `Rewriter.apply`, which is given each equation that a value meets, and `Rewriter.note`,
        which is given each body that is rewritten, with what the class ``noted`` about it.
        """
        ...


class Pass(Protocol):
    """Changes a program before its equations meet values and rules.

    A table of rules holds entries of a pass, which only the pass reads. It runs on each
    program, and on each body inside of one, if a table in force has entries of it: the global
    table, or one that a transform was given. The programs that it made are kept until a table
    changes. So what it makes depends on its arguments alone.

    Subclass this protocol for the defaults of what a pass need not have.

    Attributes
    ----------
    primitives
        Primitives that only this pass adds. Their handlers are applied before any rule, and tell
        whether the program changes: a pass that has none changes it by returning another one.
    """

    primitives: Set[Primitive] = frozenset()

    @abstractmethod
    def run(
        self,
        jaxpr: Jaxpr,
        entries: Sequence[tuple[int, Any]],
        values: Set[Var],
        misses: list[Any] | None,
    ) -> Jaxpr:
        """The program that takes the place of ``jaxpr``; ``jaxpr`` itself if none does.

        Parameters
        ----------
        jaxpr
            A jaxpr without constants. The calls and loops in it are equations: their bodies
            come later, each as a program of its own.
        entries
            The entries in force, each with the number of its table, the nearest first. Beside
            values, those of transforms around this one are among them, and the pass runs on
            what comes out once more there.
        values
            The ``invars`` that are values.
        misses
            A list to which the pass may add what almost applied, if somebody asks for it.

        Returns
        -------
        Jaxpr
            A program of the same operands and results, in their order, that computes the
            same, without constants, and without equations that nothing needs.
        """
        ...

    def data_flow(self, jaxpr: Jaxpr) -> DataFlow | None:
        """The data flow of a program that it will run on, if it has to know that anyway."""
        return None


class ClassHook(Protocol):
    """Is told of each class of values.

    Another library may have a table of classes, such as that of a serialiser.
    """

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it can be told of classes. The other library may not be imported yet."""
        ...

    @abstractmethod
    def defined(self, cls: type) -> None:
        """Take note of a class that has become a pytree."""
        ...


class StagingHook(Protocol):
    """Looks at what a function does to its arguments besides what it returns.

    A function is staged on copies of its arguments. What it stores in the copies, such as new
    statistics of a layer, becomes a result of the program, and is stored in the caller's
    arguments after each call.
    """

    @abstractmethod
    def before(self, tree: Tree) -> Any:
        """What to look at in a pytree of ``(fn, args, kwargs)``, before ``fn`` is called."""
        ...

    @abstractmethod
    def after(self, state: Any) -> Any:
        """What has changed since: a pytree of arrays and values; a false one if nothing has.

        ``state`` is what `before` returned.
        """
        ...

    @abstractmethod
    def store(self, tree: Tree, changed: Any) -> None:
        """Store in the caller's arguments what `after` returned, now with its arrays."""
        ...


class Analysis(Protocol):
    """Tells facts about the variables of a program, by the equations that compute them.

    One object of the class is made for each program, and for each body inside of one, when
    somebody first asks for it.
    """

    def __init__(self, eqns: Sequence[JaxprEqn], facts: Mapping[Var, Any]):
        """Look at the equations of a program under construction, to which more are added.

        ``facts`` are those about its operands that `OperandsHook.known` gave for a body.
        """
        ...

    def __call__(self, atom: Atom) -> Any:
        """The fact about a variable or a literal of the program."""
        ...


class _All:
    """Holds the names of all primitives."""

    def __contains__(self, name: object) -> bool:
        return True


ALL_PRIMITIVES: Container[str] = _All()
"""For a hook that is shown all equations, as its ``primitives``."""


class OperandsHook(Protocol):
    """Gives equations other operands, by what it has seen of the equations before them.

    One object of the registered class is made for each program, and for each body inside of
    one, while it is rewritten. Subclass this protocol for the defaults of what a hook need not
    have.

    Attributes
    ----------
    primitives
        The names of the primitives of the equations that it is shown, where values or rules
        meet them.
    """

    primitives: Container[str]

    def __init__(self, analysis: Callable[[type[Analysis]], Any]):
        """Prepare for a program. ``analysis`` gives the object of an `Analysis` of it."""
        ...

    def known(
        self, jaxpr: AnyJaxpr, operands: Sequence[Any]
    ) -> Mapping[type[Analysis], Mapping[int, Any]]:
        """The facts about operands of a body, by position, that its analyses are to start with.

        Each must be hashable: the body is rewritten anew for other facts. An operand is a value,
        a variable or literal of this program, or an aval of which nothing is known.
        """
        return {}

    def begin(self, jaxpr: AnyJaxpr) -> None:
        """Take note of the body whose equations come next."""
        return

    def end(self, operands: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        """The results of a body on some operands, in place of these."""
        return results

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        """An equation with the same results, and its operands, in place of these.

        Parameters
        ----------
        eqn
            An equation of arrays, with the parameters.
        operands
            A value or a variable of the new program for each of its operands.

        Returns
        -------
        tuple
            The equation and the operands themselves, if it knows of none that are better.
        """
        return eqn, operands

    def results(
        self,
        eqn: JaxprEqn,
        operands: Sequence[Any],
        results: Sequence[Any],
        leafwise: Callable[[Any], Any],
    ) -> None:
        """Take note of what became of an equation on these operands.

        ``leafwise`` applies the equation to each leaf of another value, for primitives that
        do no more than return an array.
        """
        return


# Functions that return the policy for a name, which may load its module first.
policies: dict[str, Callable[[], Policy]] = {}

# The passes, in the order in which they run.
passes: list[Pass] = []

staging_hooks: list[StagingHook] = []

operands_hooks: list[type[OperandsHook]] = []
# Functions of `Rewriter.analysis`, an equation and operands: these, with literals for numbers.
numbers: list[Callable[[Callable[..., Any], JaxprEqn, Sequence[Any]], Sequence[Any]]] = []

class_hooks: list[ClassHook] = []
# The hooks that were not ready when they were asked last.
waiting: list[ClassHook] = []
_classes: list[type] = []


def add_class_hook(hook: ClassHook) -> None:
    """Tell a hook of all classes of values, unless it raises an error at one that exists."""
    if not hook.is_ready():
        waiting.append(hook)
        return
    for cls in _classes:
        hook.defined(cls)
    class_hooks.append(hook)


def ask_waiting() -> None:
    """Ask the hooks that are waiting, where a user has made a value."""
    for hook in [hook for hook in waiting if hook.is_ready()]:
        waiting.remove(hook)
        add_class_hook(hook)


def class_defined(cls: type) -> None:
    """Tell the hooks of a class that has become a pytree: all of them, before an error is raised."""
    _classes.append(cls)
    with contextlib.ExitStack() as told:
        for hook in reversed(class_hooks):
            told.callback(hook.defined, cls)
