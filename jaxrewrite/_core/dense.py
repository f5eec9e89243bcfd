"""How values become dense, whether the policy allows it, and the messages about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _compat
from .._compat import Primitive
from .avals import aval_of, mismatch
from .errors import MaterialisationError
from .hooks import Policy
from .value import ArrayOrValue, Operand, Value, is_value


class Reason(NamedTuple):
    """Why a value has to become dense, and a remedy, or the method that its type lacks."""

    what: str
    remedy: str = ""
    method: str = ""

    def on(self, primitive: Primitive, cls: type) -> str:
        return self.what.format(primitive=primitive.name, cls=cls.__name__)

    def remedy_of(self, primitive: Primitive, cls: type[Value]) -> str:
        remedy = self.remedy.format(cls=cls.__name__) or missing_method(cls, self.method)
        return cls._remedies.get(primitive.name, remedy)

    def refusal(
        self, primitive: Primitive, cls: type[Value], policy: str | Policy = "forbid"
    ) -> MaterialisationError:
        """The error if the policy of the call, or else that of the type, forbids it."""
        own = f"{cls.__name__}.materialise_policy = "
        by = "materialise=" if policy == "forbid" else own
        return MaterialisationError(
            f"{self.on(primitive, cls)}, which may not be made dense here "
            f"({by}'forbid'). {self.remedy_of(primitive, cls)}."
        )

    def warning(self, primitive: Primitive, cls: type[Value]) -> tuple[str, ...]:
        """The arguments of the `MaterialisationWarning` if the policy is to warn."""
        remedy = self.remedy_of(primitive, cls)
        text = f"{self.on(primitive, cls)}, which is made dense. {remedy}, or pass "
        text += "materialise='allow' if this is meant."
        return text, primitive.name, cls.__name__, remedy


def missing_method(cls: type[Value], method: str) -> str:
    """What the author of a type can do, or the user of a type of this library."""
    if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return f"Define {cls.__name__}.{method}"
    return f"Make it dense before, or define {method} in a subclass of {cls.__name__}"


NO_RULE = Reason("No rule for primitive {primitive!r} on {cls}", "Register a rule")
HIDING = Reason(
    "No rule for primitive {primitive!r} holds for what is inside of {cls}",
    "Put the annotation around it",
)


def policy_on(cls: type[Value], policy: str | Policy) -> str:
    """The policy for values of a type: the type decides if the call does not."""
    if cls._is_seen_dense:
        return "allow"
    if not isinstance(policy, str):
        return cls.materialise_policy or "allow"
    return (cls.materialise_policy or policy) if policy == "warn" else policy


def make_dense(
    value: Value,
    materialise: Callable[[Value, Callable[[Any], Any]], Any],
    is_enough: Callable[[Any], bool] = lambda x: False,
) -> Any:
    """Make a value dense, one layer after the other.

    Parameters
    ----------
    value
        The value, with arrays or atoms of a jaxpr as leaves.
    materialise
        Makes one layer dense by `materialised`, and passes the result, which may be another
        value, through the function that it is given.
    is_enough
        Whether a value may stay as it is. Another result that does not have the value's
        aval is an error.
    """
    expected = aval_of(value)
    what = f"{type(value).__name__}.materialise"

    def checked(dense: Operand | ArrayOrValue) -> Operand | ArrayOrValue:
        problem = mismatch(dense, expected, what, "its aval says")
        if problem is not None:
            raise MaterialisationError(problem)
        return dense if is_value(dense) else _compat.as_weak_as(dense, expected)

    dense: Any = value
    with _compat.bits_of([expected]):
        while is_value(dense) and not is_enough(dense):
            dense = materialise(dense, checked)
    return dense


def materialised(value: Value, subject: str | None = None) -> Any:
    """The result of a value's ``materialise``; an error names ``subject``, or the type."""
    try:
        return _compat.call_on_mesh(type(value).materialise, value)
    except Exception as error:
        if subject is None and isinstance(error, MaterialisationError):
            raise  # The message is complete already.
        subject = subject or type(value).__name__
        why = str(error) or type(error).__name__
        raise MaterialisationError(f"{subject} can't be made dense: {why}") from error
