"""Wrappers of functions in the parameters of equations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import jax.extend.core as jex_core

# Wrappers of derivative rules hold the trace that made them.
from jax._src.core import Trace
from jax.extend.core import TraceTag
from jax.extend.linear_util import WrappedFun, wrap_init
from jax.tree_util import tree_leaves

from .types import ClosedJaxpr, Jaxpr, JaxprEqn, ShapedArray, Tracer


JAXPRS = (Jaxpr, ClosedJaxpr)


def is_wrapped_function(x: Any) -> bool:
    """Whether a parameter is JAX's wrapper of a function and its transformations."""
    return isinstance(x, WrappedFun)


def is_bookkeeping(x: Any) -> bool:
    """Whether an object belongs to one trace and says nothing of the function traced."""
    return isinstance(x, (Trace, TraceTag, jex_core.DebugInfo, JaxprEqn, ShapedArray))


def without_dead_code_wrapper(fn: Any) -> Any:
    """A derivative rule without the wrapper that dropping dead code puts around it.

    The wrapper stays if it drops a result.
    """
    if not is_wrapped_function(fn):
        return fn
    thunk = _captured(fn.f).get("fn", fn.f)
    names = {
        "dce_jvp_jaxpr_thunk": "jvp_jaxpr_fun",
        "dce_fwd_jaxpr_thunk": "fwd_jaxpr_thunk",
        "dce_bwd": "bwd",
    }
    inner = names.get(getattr(thunk, "__name__", ""))
    if inner is None or not all(_captured(thunk)["used_outs"]):
        return fn
    return without_dead_code_wrapper(_captured(thunk)[inner])


class ForwardRule:
    """The forward rule of a custom_vjp equation with these parameters.

    JAX keeps a jaxpr of it for each choice of perturbed operands. But the structure of its
    residuals, which the backward rule reads, is that of the latest trace alone, where the rule may
    save other residuals for another choice if it has symbolic zeros.
    """

    def __init__(self, params: Mapping[str, Any]):
        self._params = params
        self._structures: dict[Sequence[bool], Any] = {}

    def _structure(self) -> Any:
        return self._params["out_trees"]()[1:]

    def trace(
        self, perturbed: Sequence[bool]
    ) -> tuple[Any, Sequence[Any], int, list[int | None]]:
        """Trace the rule.

        Returns its jaxpr and consts, the number of residuals among the jaxpr's results, and for
        each residual the operand that it is, or ``None``.
        """
        thunk, choice = self._params["fwd_jaxpr_thunk"], tuple(perturbed)
        if self._params["symbolic_zeros"]:
            _forget(thunk, choice)
        jaxpr, consts = thunk.call_wrapped(*choice)
        tree, forwarded = self._structures[choice] = self._structure()
        num_computed = tree.num_leaves - sum(i is not None for i in forwarded)
        return jaxpr, consts, num_computed, forwarded

    def restore(self, perturbed: Sequence[bool]) -> None:
        """Let the backward rule read the residuals of this choice, for which it was traced."""
        if self._structure() != self._structures[tuple(perturbed)]:
            self.trace(perturbed)


# The parameter with the rule that JAX runs first, by the primitive that calls a function with rules
# of its own.
OWN_RULES = {"custom_jvp_call": "jvp_jaxpr_fun", "custom_vjp_call": "fwd_jaxpr_thunk"}


def with_own_rule(
    eqn: JaxprEqn, change: Callable[[Jaxpr, Sequence[Any]], tuple[Jaxpr, Sequence[Any]]]
) -> JaxprEqn:
    """The equation with another jaxpr and other constants of its rule, whenever JAX traces it."""
    name = OWN_RULES[eqn.primitive.name]
    rule = eqn.params[name]

    def changed(*which_operands: bool) -> Any:
        jaxpr, consts, *rest = rule.call_wrapped(*which_operands)
        return (*change(jaxpr, consts), *rest)

    changed_rule = wrap_init(changed, debug_info=rule.debug_info)
    return eqn.replace(params={**eqn.params, name: changed_rule})


def _forget(thunk: WrappedFun, perturbed: tuple[bool, ...]) -> None:
    """Forget a jaxpr that JAX keeps of a forward rule, also within the wrappers around it."""
    memo = _captured(thunk.f)
    memo["cells"].pop(perturbed, None)
    inner = _captured(memo["fn"]).get("fwd_jaxpr_thunk")
    if inner is not None:
        _forget(inner, perturbed)


def same_derivatives(a: JaxprEqn, b: JaxprEqn) -> bool:
    """Whether two calls of functions have the same rules for their derivatives, if any."""
    derivatives = [
        [derivative_of(eqn.params.get(name)) for name in RULES] for eqn in (a, b)
    ]
    return all(x is y for x, y in zip(*derivatives, strict=True))


# The parameters with a user's rules for derivatives.
RULES = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd")


def derivative_of(fn: Any) -> Any:
    """A user's rule for derivatives inside of JAX's wrappers."""
    while is_wrapped_function(fn):
        held = _captured(_captured(fn.f).get("fn", fn.f))
        names = ("jvp", "fwd", *RULES)
        inner = [held[name] for name in names if is_wrapped_function(held.get(name))]
        fn = inner[0] if inner else fn.f
    # With ``optimize_remat`` JAX makes another wrapper at each call.
    held = _captured(fn)
    return held["fwd"] if "debug_fwd" in held else fn


def closes_over_tracers(rule: Any) -> bool:
    """Whether a user's derivative rule holds arrays of a trace, in functions or data at any depth."""
    return next(tracers_in(derivative_of(rule)), None) is not None


def tracers_in(*objects: Any) -> Iterator[Tracer]:
    """The arrays of traces that functions or data hold, at any depth."""
    seen, rest = set(), [*objects]
    while rest:
        x = rest.pop()
        if isinstance(x, Tracer):
            yield x
        elif id(x) not in seen:
            seen.add(id(x))
            rest += _held(x)


def tracers_hidden_in(x: Any) -> Iterator[Tracer]:
    """The arrays of traces that an object holds that is no pytree, also in its attributes."""
    is_instance = not isinstance(x, (type, ModuleType))
    attributes = getattr(x, "__dict__", {}).values() if is_instance else ()
    return tracers_in(x, *attributes)


def _held(x: Any) -> list[Any]:
    """What a function holds besides its code, or the leaves of data."""
    if isinstance(x, FunctionType):
        defaults = [*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
        return [*(x.__closure__ or ()), *defaults]
    if isinstance(x, CellType):
        try:
            return [x.cell_contents]
        except ValueError:  # The variable has no value yet.
            return []
    if isinstance(x, MethodType):
        return [x.__func__, x.__self__]
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    wrapped = getattr(x, "__wrapped__", None)
    if wrapped is not None:
        return [wrapped]
    # An object that is called may hold arrays in its attributes, as a closure does in its cells.
    is_object = callable(x) and not isinstance(x, type)
    attributes = getattr(x, "__dict__", {}).values() if is_object else ()
    return [*tree_leaves(x), *attributes]


def _captured(fn: Any) -> Mapping[str, Any]:
    """The objects that a function closes over, by name."""
    if not isinstance(fn, FunctionType):
        return {}
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    # A variable without a value has no contents.
    return {name: content for name, cell in cells for content in _held(cell)}
