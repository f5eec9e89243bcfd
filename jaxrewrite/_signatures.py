"""How many operands JAX's primitives have, and which parameters; and whether a rule takes them.

No public name of JAX tells that. So a small program with the primitive is traced, once, when a
rule is registered for it. A primitive without a program here is not known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from . import _compat
from ._compat import Primitive
from ._core.annotations import Signature, shown
from ._core.rules import Rule, checks, is_of_a_library
from .primitives import COMMUTATIVE


class Known(NamedTuple):
    """The number of operands of a primitive, ``None`` if it varies, and its parameters.

    ``absent`` are the parameters that are ``None`` unless a program says otherwise.
    """

    operands: int | None
    params: tuple[str, ...]
    absent: tuple[str, ...]

    def __str__(self) -> str:
        count = (
            "any number of operands" if self.operands is None else _operands(self.operands)
        )
        named = ", ".join(self.params)
        return f"{count} and {f'the parameters {named}' if named else 'no parameters'}"


def _operands(count: int) -> str:
    return f"{count} operand{'' if count == 1 else 's'}"


def known(primitive: Primitive) -> Known | None:
    """The known signature of a primitive, or ``None``."""
    found = _by_name(primitive.name)
    return found[1] if found is not None and found[0] is primitive else None


@functools.cache
def _by_name(name: str) -> tuple[Primitive, Known] | None:
    program = _programs().get(name)
    if program is None:
        return None
    fn, *avals = program
    # What is known is kept, so it must not depend on the settings in force.
    with jax.default_matmul_precision(None):
        jaxpr = jax.make_jaxpr(fn)(*avals)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == name:
            absent = tuple(key for key, x in eqn.params.items() if x is None)
            operands = None if name in _VARIADIC else len(eqn.invars)
            return eqn.primitive, Known(operands, tuple(sorted(eqn.params)), absent)
    return None


def completed(primitive: Primitive, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a primitive, with ``None`` where JAX's own functions leave it.

    Derivatives and lowerings of JAX need them, also where the primitive is bound without.
    """
    signature = known(primitive)
    return (dict.fromkeys(signature.absent) if signature else {}) | dict(params)


def checked(primitive: Primitive, params: Mapping[str, Any]) -> dict[str, Any]:
    """`completed` parameters; `TypeError` if the primitive is known to have others."""
    signature, complete = known(primitive), completed(primitive, params)
    if signature is not None:
        other = [name for name in complete if name not in signature.params]
        missing = [name for name in signature.params if name not in complete]
        if other or missing:
            problem = f"takes no {other[0]}" if other else f"needs {', '.join(missing)}"
            raise TypeError(f"Primitive {primitive.name!r} {problem}. It has {signature}.")
    return complete


_VARIADIC = {
    *(
        "broadcast_in_dim",
        "concatenate",
        "dynamic_slice",
        "dynamic_update_slice",
        "reshape",
    ),
    *("select_n", "sort"),
}

_OF_A_FLOAT = (
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh cumlogsumexp "
    "cummax cummin cumprod cumsum digamma erf erf_inv erfc exp exp2 expm1 floor is_finite lgamma "
    "log log1p logistic neg rsqrt sign sin sinh sqrt square tan tanh cholesky"
)
_OF_AN_INTEGER = "clz population_count"
_OF_FLOATS = "add sub mul div rem max min pow atan2 nextafter igamma igammac eq ne lt le gt ge complex"
_OF_INTEGERS = "shift_left shift_right_arithmetic shift_right_logical"
_REDUCING = "reduce_max reduce_min reduce_prod reduce_sum"


@functools.cache
def _programs() -> dict[str, tuple[Any, ...]]:
    """A function and the avals of its arguments, by the name of a primitive in it."""
    f, i, c, b = (
        jax.ShapeDtypeStruct((2, 2), dtype)
        for dtype in ("float32", "int32", "complex64", "bool")
    )
    at = jax.ShapeDtypeStruct((), "int32")
    programs: dict[str, tuple[Any, ...]] = {
        "and": (lax.bitwise_and, i, i),
        "or": (lax.bitwise_or, i, i),
        "xor": (lax.bitwise_xor, i, i),
        "not": (lax.bitwise_not, i),
        "conj": (lax.conj, c),
        "imag": (lax.imag, c),
        "real": (lax.real, c),
        "round": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), f),
        "integer_pow": (lambda x: lax.integer_pow(x, 3), f),
        "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 10), f),
        "convert_element_type": (lambda x: lax.convert_element_type(x, "int32"), f),
        "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, "int32"), f),
        "clamp": (lambda x: lax.clamp(x, x, x), f),
        "select_n": (lambda which, x: lax.select_n(which, x, x), b, f),
        "reduce_and": (lambda x: lax.reduce_and(x, (0,)), b),
        "reduce_or": (lambda x: lax.reduce_or(x, (0,)), b),
        "argmax": (lambda x: lax.argmax(x, 0, "int32"), f),
        "argmin": (lambda x: lax.argmin(x, 0, "int32"), f),
        "broadcast_in_dim": (lambda x: lax.broadcast_in_dim(x, (1, 2, 2), (1, 2)), f),
        "concatenate": (lambda x: lax.concatenate([x, x], 0), f),
        "pad": (lambda x: lax.pad(x, x[0, 0], [(1, 1, 0)] * 2), f),
        "reshape": (lambda x: lax.reshape(x, (4,)), f),
        "rev": (lambda x: lax.rev(x, (0,)), f),
        "slice": (lambda x: lax.slice(x, (0, 0), (1, 1)), f),
        "squeeze": (lambda x: lax.squeeze(lax.slice(x, (0, 0), (1, 2)), (0,)), f),
        "transpose": (lambda x: lax.transpose(x, (1, 0)), f),
        "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, i), (1, 1)), f, at),
        "dynamic_update_slice": (
            lambda x, i: lax.dynamic_update_slice(x, x, (i, i)),
            f,
            at,
        ),
        "sort": (lax.sort, f),
        "top_k": (lambda x: lax.top_k(x, 1), f),
        "dot_general": (lax.dot, f, f),
        "triangular_solve": (lax.linalg.triangular_solve, f, f),
        "lu": (lax.linalg.lu, f),
    }
    one_by_one = (
        (_OF_A_FLOAT, f),
        (_OF_AN_INTEGER, i),
        (_OF_FLOATS, f, f),
        (_OF_INTEGERS, i, i),
    )
    for names, *avals in one_by_one:
        for name in names.split():
            programs[name] = (getattr(lax, name, None) or getattr(lax.linalg, name), *avals)
    for name in _REDUCING.split():
        programs[name] = (functools.partial(_reduced, getattr(lax, name)), f)
    return programs


def _reduced(reduce: Callable[..., Any], x: Any) -> Any:
    return reduce(x, (0,))


# --- rules ------------------------------------------------------------------------


def _check_applies(rule: Rule, primitives: Sequence[Primitive]) -> None:
    """Raise `TypeError` if a user's rule can be called for none of its primitives.

    The rules of a library are checked by its tests, so that its import traces nothing.
    """
    if is_of_a_library(rule):
        return
    reasons = []
    for primitive in primitives:
        takes = known(primitive)
        why = takes and why_never(rule.signature, takes)
        if takes is None or why is None:
            return
        reasons.append((primitive, takes, why))
    primitive, takes, why = reasons[0]
    slots = "xyz"[: takes.operands] if takes.operands else ("*xs",)
    named = ("*", *takes.params) if takes.params else ()
    raise TypeError(
        f"Rule {rule} can never apply to primitive {primitive.name!r}: {why}. Its equations "
        f"have {takes}. Operands are positional, parameters are keyword-only:\n"
        f"  @jaxrewrite.register({primitive.name!r})\n"
        f"  def _({', '.join([*slots, *named])}): ...\n"
        "where **params may stand for the parameters that the rule does not need."
    )


def why_never(signature: Signature, takes: Known) -> str | None:
    """Why a rule cannot be called for a primitive, or ``None`` if it can."""
    count = len(signature.operands)
    least = takes.operands if takes.operands is not None else math.inf
    if count > least or (signature.variadic is None and count < (takes.operands or 0)):
        return f"it takes {'at least ' if signature.variadic else ''}{count} operands"
    if absent := signature.required - {*takes.params}:
        return f"it needs a parameter {', '.join(sorted(absent))}"
    if not signature.any_keyword and (rest := {*takes.params} - signature.keywords):
        return f"it does not take the parameter {', '.join(sorted(rest))}"
    return None


def _check_exchange(rule: Rule, primitives: Sequence[Primitive]) -> None:
    """Raise `TypeError` if a user's rule would get the operands in the wrong order."""
    of_jax = _compat.primitives_by_name()
    for primitive in primitives:
        is_of_jax = of_jax.get(primitive.name) is primitive
        if rule.mirrored and is_of_jax and primitive.name not in COMMUTATIVE:
            raise TypeError(
                f"Rule {shown(rule.fn)} has exchange='operands', but the order of the operands of primitive "
                f"{primitive.name!r} matters. With exchange='types' the rule gets them in the "
                "order of the program."
            )


checks += [_check_applies, _check_exchange]
