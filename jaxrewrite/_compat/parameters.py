"""Parameters of equations that differ between releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

# JAX's own check of a rule for `jax.custom_batching.custom_vmap`, with its own message.
from jax._src.custom_batching import check_vmap_rule_trees as check_vmap_rule_trees
from jax.custom_derivatives import SymbolicZero
from jax.interpreters.ad import Zero, primitive_jvps

from .types import (
    JAX_GE_0_11_0,
    JAX_GE_0_11_1,
    JAX_GE_0_11_2,
    JaxprEqn,
    Primitive,
    ShapedArray,
)


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """The number of a scan's operands that are constants, and that are its carry."""
    if JAX_GE_0_11_0:
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def scan_params(
    params: Mapping[str, Any], jaxpr: Any, counts: Sequence[int]
) -> dict[str, Any]:
    """The parameters of a scan with another body.

    ``counts`` are the numbers of constants, carry, xs and ys.
    """
    consts, carry, xs, ys = counts
    if not JAX_GE_0_11_0:
        return {**params, "jaxpr": jaxpr, "num_consts": consts, "num_carry": carry}
    # Newer releases count operands by trees that no public function makes.
    from jax._src.flattree import nones, pack

    ft_in = pack((nones(consts), nones(carry), nones(xs)))
    ft_out = pack((nones(carry), nones(ys)))
    return {**params, "jaxpr": jaxpr, "ft_in": ft_in, "ft_out": ft_out}


# Trees of the operands and results of a scan. They also tell which results are operands,
# which its body tells, too.
TREES_OF_SCAN = frozenset({"ft_in", "ft_out"})


# The primitives that call a jaxpr and do not name the parameter ``jaxpr``.
_CALL_JAXPR = {
    "closed_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "program_order",
    *(["eval_jaxpr"] if JAX_GE_0_11_1 else []),
    *(["composite"] if JAX_GE_0_11_2 else []),
}


def body_name(primitive: Primitive) -> str:
    """The name of the parameter that holds the jaxpr."""
    return "call_jaxpr" if primitive.name in _CALL_JAXPR else "jaxpr"


def can_be_expanded(eqn: JaxprEqn) -> bool:
    """Whether the expansion and `jvp` of a "hi" primitive are all that it does.

    They are not if it holds references or types of its own, or if its backward rule is not
    the transpose of its `jvp`. Before JAX 0.11.1 no function of JAX makes one.
    """
    primitive = eqn.params["_prim"]
    cls = type(primitive)
    if not JAX_GE_0_11_1:
        return False
    avals: list[Any] = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    if not all(isinstance(aval, ShapedArray) for aval in avals):
        return False
    is_differentiable = any(
        jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)
        for aval in avals[len(eqn.invars) :]
    )
    from jax._src import hijax

    derived: list[Any] = [getattr(hijax, name) for name in ("vjp_from_jvp", "vjp_from_lin")]
    of_jvp = [rules.vjp_fwd for rules in derived]
    return not is_differentiable or cls.vjp_fwd in of_jvp


def is_transposed_by_itself(eqn: JaxprEqn) -> bool:
    """Whether a "hi" primitive has a transpose that does not follow from its expansion."""
    cls = type(eqn.params["_prim"])
    # The class from which all derive has one name in JAX 0.11 and another one in 0.12.
    classes = [c for c in cls.__mro__ if c.__module__ != "jax._src.hijax"]
    return any("transpose" in vars(c) for c in classes)


def expand(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Express a "hi" primitive by other primitives."""
    return list(eqn.primitive.to_lojax(*operands, **eqn.params))


def differentiate(
    eqn: JaxprEqn, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The results of a "hi" primitive and their tangents, by its own rule.

    Zero tangents among the operands are those of `jax.custom_jvp`. Zero tangents of results
    have the same class.
    """
    with_zeros = [Zero(t.aval) if isinstance(t, SymbolicZero) else t for t in tangents]
    results, result_tangents = primitive_jvps[eqn.primitive](
        list(primals), with_zeros, **eqn.params
    )
    return list(results), [
        SymbolicZero(t.aval) if isinstance(t, Zero) else t for t in result_tangents
    ]


def call_backward(bwd: Any, operands: Sequence[Any]) -> list[Any]:
    """Call the backward rule of a custom_vjp equation; ``None`` for zeros."""
    returned = bwd.call_wrapped(*operands)
    if JAX_GE_0_11_1:
        returned, _ = returned  # A pair of cotangents and logs.
    return [None if isinstance(ct, (Zero, SymbolicZero)) else ct for ct in returned]
