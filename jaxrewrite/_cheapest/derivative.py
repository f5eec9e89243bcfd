"""Derivatives of equations that were made dense by choice.

The cheaper program of a function need not have the cheaper derivative. Where many rows meet a LoRA
weight it is cheaper to merge it; but the derivative by the factors then takes a cotangent of the
whole matrix, a product as large as that of the function itself, and a few thin products without
it. So a dense equation has a derivative rule of its own. A derivative is the sum of those by each operand,
and for each of them that moves the rule takes the cheaper of two: through the dense operands, or as
the implicit equation has it. Both are functions of the leaves, so higher derivatives are right.

The rule runs where JAX differentiates the program, and is chosen by costs of the tangents, which are
those of cotangents, because a linear function and its transpose take about as many operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten

from .. import _compat
from .._core.avals import avals_of
from .._core.builder import Applied
from .._core.site import Site
from .._core.value import Operand, is_value
from .._staging.materialise import materialise
from .._staging.program import run_on_values
from . import model


def emit_dense(site: Site, operands: Sequence[Operand], dense: Sequence[Any]) -> list[Any]:
    """Add the equation on dense operands, with the cheaper derivatives by ``operands``."""
    if not _has_derivative(site, operands):
        site.emit(dense, site.outvars)
        return list(site.outvars)
    leaves, in_tree = tree_flatten(list(operands))
    fn = _Differentiated(site, in_tree, len(leaves))
    debug_info = _compat.new_debug_info(site.primitive.name, fn.on_dense)
    builder, inputs = site.builder, [*leaves, *dense]
    with site.context.manager:
        jaxpr, consts = _compat.trace_to_jaxpr(fn, avals_of(inputs), debug_info)
    inputs = [*builder.constants(jaxpr, consts), *inputs]
    start = len(builder.eqns)
    results = site.inline(jaxpr, inputs)
    builder.applied.append(Applied(jaxpr, inputs, results, builder.eqns[start:]))
    return results


def _has_derivative(site: Site, operands: Sequence[Operand]) -> bool:
    leaves = tree_leaves([x for x in operands if is_value(x)])
    atoms = [*leaves, *site.eqn.outvars]
    is_moving = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals_of(atoms)]
    return (
        any(is_moving[: len(leaves)])
        and any(is_moving[len(leaves) :])
        and (not site.eqn.effects)
    )


class _Differentiated:
    """An equation as a function of the leaves of its operands, and of its dense operands.

    The result is that of the dense operands. The derivative is by the leaves.
    """

    def __init__(self, site: Site, in_tree: Any, count: int):
        self.site, self.eqn = site, site.eqn
        self.in_tree, self.count = in_tree, count
        self.has_bodies = any(True for _ in jex_core.jaxprs_in_params(site.params))
        self.settings = site.settings._replace(policy="allow", recorder=None)
        self.fn = jax.custom_jvp(lambda *args: self.on_dense(args[count:]))
        self.fn.defjvp(self.rule, symbolic_zeros=True)

    def __call__(self, *args: Any) -> list[Any]:
        return list(self.fn(*args))

    def on_dense(self, arrays: Sequence[Any]) -> list[Any]:
        source, context = _compat.eqn_context(self.eqn)
        with source, context:
            return list(_compat.bind_eqn(self.eqn, arrays))

    def on_values(self, operands: Sequence[Any]) -> list[Any]:
        # A hook may have given the equation other operands than its own variables.
        avals = avals_of(operands)
        debug_info = _compat.new_debug_info(self.eqn.primitive.name, self.on_dense)
        jaxpr, consts = _compat.trace_to_jaxpr(
            lambda *arrays: self.on_dense(arrays), avals, debug_info
        )
        results = run_on_values(self.settings, jaxpr, [*consts, *operands], self.site)
        return materialise(results)

    def rule(
        self, primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        moving = [
            [p for p in tree_leaves(operand) if type(tangents[p]) is not SymbolicZero]
            for operand in self._positions()
        ]
        if self.has_bodies:  # The tangents of a loop or a call compute the results again.
            return self._derivative([p for at in moving for p in at], primals, tangents)
        results = self(*primals)
        total = [_zero_tangent(x) for x in results]
        for at in filter(None, moving):
            more = self._derivative(at, primals, tangents)[1]
            total = [
                t + change if _is_inexact(x) else t
                for x, t, change in zip(results, total, more, strict=True)
            ]
        return results, total

    def _derivative(
        self, at: Sequence[int], primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The results, and their tangents by some leaves: JAX asks only where some move."""
        results, changes = self._cheaper(at, primals)(*primals, *(tangents[p] for p in at))
        return results, changes

    def _cheaper(self, at: Sequence[int], primals: Sequence[Any]) -> Callable[..., Any]:
        """The derivative by some leaves in the cheaper way: results, and their tangents."""

        def derivative(on: Callable[..., Any], *args: Any) -> Any:
            primals, moving = args[: -len(at)], args[-len(at) :]
            fn = functools.partial(on, at, primals)
            return jax.jvp(fn, [primals[p] for p in at], list(moving))

        ways = [functools.partial(derivative, on) for on in (self._through, self._around)]
        args = [*primals, *(_tangent_like(primals[p]) for p in at)]
        return min(ways, key=lambda way: _cost(way, args))

    def _through(self, at: Sequence[int], primals: Sequence[Any], *moved: Any) -> list[Any]:
        """The results by way of dense operands, as a function of the leaves that move."""
        operands = self._operands(at, primals, moved)
        dense = primals[self.count :]
        moves = [any(p in at for p in tree_leaves(x)) for x in self._positions()]
        return self.on_dense(
            [
                materialise(x) if is_moving else array
                for x, array, is_moving in zip(operands, dense, moves, strict=True)
            ]
        )

    def _around(self, at: Sequence[int], primals: Sequence[Any], *moved: Any) -> list[Any]:
        """The same as the implicit equation has them."""
        return self.on_values(self._operands(at, primals, moved))

    def _positions(self) -> list[Any]:
        """The operands, with the positions of their leaves in place of these."""
        positions: list[Any] = tree_unflatten(self.in_tree, range(self.count))
        return positions

    def _operands(
        self, at: Sequence[int], primals: Sequence[Any], moved: Sequence[Any]
    ) -> list[Any]:
        leaves = primals[: self.count]
        changed = {**dict(enumerate(leaves)), **dict(zip(at, moved, strict=True))}
        operands: list[Any] = tree_unflatten(self.in_tree, changed.values())
        return operands


def _cost(fn: Callable[..., Any], args: Sequence[Any]) -> float:
    """The seconds of the tangents that a derivative gives, by the model."""
    floats = lambda *args: [x for x in fn(*args)[1] if _is_inexact(x)]
    debug_info = _compat.new_debug_info("tangent", fn)
    jaxpr, _ = _compat.trace_to_jaxpr(floats, avals_of(args), debug_info)
    return model.seconds_of_jaxpr(_compat.drop_dead_code(jaxpr))


def _tangent_like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _zero_tangent(x: Any) -> Any:
    if _is_inexact(x):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)
