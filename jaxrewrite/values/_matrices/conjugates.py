"""The conjugate of a complex matrix leaf by leaf, where the program of its ``materialise`` says so."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jax.tree_util import PyTreeDef, tree_flatten, tree_unflatten

import jaxrewrite


# Primitives whose result is conjugated where their operands are.
_COMMUTING = """
    abs add add_any and broadcast_in_dim concatenate conj convert_element_type copy cos cosh cumprod
    cumsum div dot_general dynamic_slice dynamic_update_slice eq exp gather ge gt integer_pow iota le
    lt mul ne neg not or pad real reduce_prod reduce_sum reshape rev scatter scatter-add select_n sin
    sinh slice split square squeeze stop_gradient sub tan tanh transpose triangular_solve
"""
_COMMUTE = frozenset(_COMMUTING.split())


def conjugated(v: Any) -> Any:
    """The value with conjugated leaves, or NotImplemented where that is another matrix.

    A matrix of phases, as of :math:`e^{i t}`, has no complex leaf.
    """
    leaves, treedef = tree_flatten(v)
    if not _commutes(treedef, tuple(jax.typeof(x) for x in leaves)):
        return NotImplemented
    return tree_unflatten(
        treedef, [lax.conj(x) if jnp.iscomplexobj(x) else x for x in leaves]
    )


@functools.lru_cache(256)
def _commutes(treedef: PyTreeDef, avals: tuple[Any, ...]) -> bool:
    def materialise(*leaves: Any) -> Any:
        return jaxrewrite.materialise(tree_unflatten(treedef, leaves))

    return _is_real(jax.make_jaxpr(materialise)(*avals))


def _is_real(closed: Any) -> bool:
    """Whether a program has no imaginary number of its own, and equations that commute."""
    inside = (eqn.params.get("jaxpr") for eqn in closed.eqns)
    return (
        not any(map(jnp.iscomplexobj, closed.consts))
        and not any(map(_is_complex_literal, closed.eqns))
        and all(
            eqn.primitive.name in _COMMUTE
            or (eqn.primitive.name in ("jit", "pjit") and _is_real(jaxpr))
            for eqn, jaxpr in zip(closed.eqns, inside, strict=True)
        )
    )


def _is_complex_literal(eqn: Any) -> bool:
    return any(type(x) is Literal and np.imag(x.val) != 0 for x in eqn.invars)
