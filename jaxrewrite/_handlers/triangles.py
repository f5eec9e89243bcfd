"""A mask that clears all but a triangle of a value, as a call of `jax.numpy.tril` or ``triu``.

JAX's own functions write such masks: `jax.lax.linalg.cholesky` clears what lies above its factor.
What a type knows of its triangles, it says in a rule for the named function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from .. import _compat
from .._analyses.triangles import Triangle, Triangles
from .._analyses.written import Written
from .._compat import AnyJaxpr, Aval, JaxprEqn, Var
from .._core.caches import cached
from .._core.hooks import Analysis, OperandsHook, operands_hooks
from .._core.settings import Settings
from .._core.value import is_value
from .._functions.called import find_called
from .._joins.zeros import is_zeros, with_zeros_of_literals


class Cleared(OperandsHook):
    """Shows a choice between a value and zeros, by the mask of a triangle, as a call."""

    primitives = frozenset({"select_n"})

    def __init__(self, analysis: Callable[[type], Any]) -> None:
        self._analysis = analysis
        self._is_of_the_call = False

    def known(
        self, jaxpr: AnyJaxpr, operands: Sequence[Any]
    ) -> Mapping[type[Analysis], Mapping[int, Triangle]]:
        """Masks reach a call beside a value, such as that of `jax.numpy.where`."""
        if not any(map(is_value, operands)):
            return {}
        of = self._analysis(Triangles)
        masks = ((i, of(x)) for i, x in enumerate(operands) if type(x) is Var)
        return {Triangles: {i: mask for i, mask in masks if mask is not None}}

    def begin(self, jaxpr: AnyJaxpr) -> None:
        """The body of a call for which no rule had an answer is what it is."""
        self._is_of_the_call = _compat.origin_of(jaxpr) in _origins()

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        if len(operands) != 3 or self._is_of_the_call or is_value(operands[0]):
            return eqn, operands
        written = self._analysis(Written)
        cases = operands[1:]
        kept = [
            i
            for i, x in enumerate(cases)
            if not is_zeros(with_zeros_of_literals(written, x))
        ]
        if len(kept) != 1 or not is_value(cases[kept[0]]):
            return eqn, operands
        (place,) = kept
        triangle = self._analysis(Triangles)(operands[0])
        if triangle is None:
            return eqn, operands
        call = self._call(triangle if place else triangle.others(), cases[place], eqn)
        if call is None:
            return eqn, operands
        invars = [eqn.invars[1 + place]]
        new = eqn.replace(primitive=call.primitive, params=call.params, invars=invars)
        return new, [cases[place]]

    def _call(self, triangle: Triangle, value: Any, eqn: JaxprEqn) -> JaxprEqn | None:
        """The call that keeps a triangle of a value; ``None`` if there is no rule for it."""
        fn = jnp.tril if triangle.lower else jnp.triu
        rules = self._analysis(Settings).rules
        if not any(True for _ in rules.choice(find_called(fn), [value])):
            return None
        return _call(
            fn, triangle.k, _compat.strong(eqn.outvars[0].aval), _compat.trace_context()
        )


operands_hooks.append(Cleared)


@functools.cache
def _origins() -> frozenset[str]:
    return frozenset(map(_compat.origin_of_function, (jnp.tril, jnp.triu)))


@cached(256)
def _call(fn: Callable[..., Any], k: int, aval: Aval, context: Any) -> JaxprEqn | None:
    """The equation that calls one of the functions; ``None`` where `jax.jit` makes none."""
    debug_info = _compat.new_debug_info(fn.__name__)
    jaxpr, _ = _compat.trace_to_jaxpr(lambda x: [fn(x, k)], [aval], debug_info)
    (eqn, *others) = jaxpr.eqns
    return eqn if _compat.calls_a_function(eqn) and not others else None
