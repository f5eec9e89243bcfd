"""JAX's types, and its releases."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import jax
import jax.extend.core as jex_core
import jax.extend.source_info_util as source_info_util

# The class of all concrete arrays but keys, which tells at once that none is a tracer.
from jax._src.array import ArrayImpl as ArrayImpl


ClosedJaxpr = jex_core.ClosedJaxpr
Jaxpr = jex_core.Jaxpr
JaxprEqn = jex_core.JaxprEqn
Var = jex_core.Var
Literal = jex_core.Literal
DropVar = jex_core.DropVar
Primitive = jex_core.Primitive
ShapedArray = jax.core.ShapedArray
Tracer = jax.core.Tracer
SourceInfo = source_info_util.SourceInfo
DebugInfo = jex_core.DebugInfo
Effects = jex_core.Effects

# An operand of an equation.
Atom: TypeAlias = Var | Literal

# The type of an operand. That of an array, a `ShapedArray`, has a shape and a dtype.
Aval: TypeAlias = jax.core.AbstractValue

# The body of an equation: which of the two depends on the primitive, and on the release.
AnyJaxpr: TypeAlias = Jaxpr | ClosedJaxpr

# A pytree of the user: arrays and values in containers of any class.
Tree: TypeAlias = Any


class EqnContext(Protocol):
    """The JAX settings under which an equation was traced."""

    @property
    def manager(self) -> AbstractContextManager[None]: ...


# The releases of JAX that changed something this package depends on. All are above the
# oldest release in setup.cfg. When the oldest release reaches one, a test fails because its
# flag is dead. Then remove the flag and the code for older releases.
_RELEASE = jax.__version_info__[:3]

# One class serves for jaxprs and closed jaxprs: a jaxpr carries its constants. A scan gives
# the numbers of its constants, carry and xs as trees.
JAX_GE_0_11_0 = _RELEASE >= (0, 11, 0)

# A jaxpr takes constants for any of its first arguments. Backward rules of custom_vjp return
# logs beside the cotangents. Functions of JAX make "hi" primitives. eval_jaxpr is kept when it is
# staged, and the name of its body is call_jaxpr. dce_sink has no result under vmap either. On a
# CPU, XLA multiplies integers of 8 bits faster than floats.
JAX_GE_0_11_1 = _RELEASE >= (0, 11, 1)

# The name of the body of lax.composite is call_jaxpr.
JAX_GE_0_11_2 = _RELEASE >= (0, 11, 2)
