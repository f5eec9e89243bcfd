"""A call of a function that JAX traces anew for each derivative.

A rule of `jax.custom_vjp` may save other residuals where other operands are perturbed. JAX keeps one
tree of residuals for an equation, that of the latest derivative, so that a pullback that was made
before that would read its residuals by the wrong tree. A function that is traced anew has an
equation of its own in each derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import _compat
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value


# A function of arrays that returns a list of arrays.
Function = Callable[..., list[Any]]

traced_anew_p = Primitive("traced_anew")
traced_anew_p.multiple_results = True


def traced_anew(fn: Function) -> Function:
    """The function, whose derivatives are found by tracing it and not by a jaxpr of it."""

    def call(*operands: Any) -> list[Any]:
        return traced_anew_p.bind(*operands, fn=fn)

    return call


def _run(*operands: Any, fn: Function) -> list[Any]:
    return fn(*operands)


def _abstract(*avals: Any, fn: Function) -> tuple[list[Any], Any]:
    debug_info = _compat.new_debug_info(getattr(fn, "__name__", "call"), fn)
    jaxpr, _ = _compat.trace_to_jaxpr(fn, avals, debug_info)
    return [var.aval for var in jaxpr.outvars], jaxpr.effects


def _tangents(
    primals: Sequence[Any], tangents: Sequence[Any], *, fn: Function
) -> tuple[list[Any], list[Any]]:
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def of_moving(*some: Any) -> list[Any]:
        operands = dict(enumerate(primals)) | dict(zip(moving, some, strict=True))
        return fn(*operands.values())

    some, along = ([xs[i] for i in moving] for xs in (primals, tangents))
    results, result_tangents = jax.jvp(of_moving, some, along)
    return results, [
        ad.Zero(_compat.leaf_aval(x).to_tangent_aval()) if _is_float0(t) else t
        for x, t in zip(results, result_tangents, strict=True)
    ]


def _is_float0(tangent: Any) -> bool:
    return bool(np.dtype(jax.dtypes.float0) == getattr(tangent, "dtype", None))


def _batched(
    axis: Any, operands: Sequence[Any], axes: Sequence[Any], *, fn: Function
) -> tuple[list[Any], list[int]]:
    """The function for each element, which may ask for the name of the axis that is mapped."""
    each = jax.vmap(
        lambda _, *operands: fn(*operands),
        (0, *axes),
        axis_name=axis.name,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )
    # If no operand is mapped, the results may depend on the element all the same.
    results = traced_anew(functools.partial(each, np.arange(axis.size)))(*operands)
    return results, [0] * len(results)


traced_anew_p.def_impl(_run)
traced_anew_p.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[traced_anew_p] = _tangents
batching.fancy_primitive_batchers[traced_anew_p] = _batched
mlir.register_lowering(traced_anew_p, mlir.lower_fun(_run, multiple_results=True))


def traced_anew_handler(site: Site, operands: list[Operand]) -> Results:
    """The equations of the function, in a transform around the one that left the call."""
    if not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    return site.call_on_arrays(site.params["fn"], operands)


handlers["traced_anew"] = traced_anew_handler
