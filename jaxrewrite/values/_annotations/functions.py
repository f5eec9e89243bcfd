"""Functions that what is inside of an annotation may know as a whole.

An annotation sees a function equation by equation. What is inside does so, too, where it has a rule
for the function: a determinant with units is none by logarithms, and the inverse of a matrix
with structure has structure.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

import jaxrewrite
from jaxrewrite.extend import unrecorded

from .._base.structured import fields_of, is_value
from .declaration import Annotated, annotation_rule, like


# They have one operand with entries. Another one may have units in a field, which are said of the
# whole result, and a rule sees one layer.
@annotation_rule(Annotated, jnp.diagonal, jnp.ldexp, jnp.median)
@annotation_rule(Annotated, jnp.trace, jnp.tril, jnp.triu)
@annotation_rule(Annotated, jnp.linalg.cholesky, jnp.linalg.cond, jnp.linalg.det)
@annotation_rule(Annotated, jnp.linalg.eigh, jnp.linalg.eigvalsh, jnp.linalg.inv)
@annotation_rule(Annotated, jnp.linalg.norm, jnp.linalg.pinv, jnp.signbit)
@annotation_rule(Annotated, jnp.linalg.slogdet)
@annotation_rule(Annotated, jax.scipy.linalg.cholesky)
@annotation_rule(Annotated, jax.scipy.linalg.eigh, jax.scipy.linalg.expm)
def _call(*operands: Any, primitive: Any, **params: Any) -> Any:
    """The results carry what those of arrays would, around the results of what is inside.

    It declines where an array would lose what is around another annotation.
    """
    outermost = max(x.outer for x in operands if isinstance(x, Annotated))
    is_outermost = [isinstance(x, Annotated) and x.outer == outermost for x in operands]
    pairs = list(zip(operands, is_outermost, strict=True))
    annotated = [x for x, is_outer in pairs if is_outer]
    if not any(is_value(x.array) for x in annotated) or any(
        len(fields_of(x)[0]) > 1 for x in annotated
    ):
        return NotImplemented
    arrays = [x._with_array(like(x)) if is_outer else like(x) for x, is_outer in pairs]
    function = functools.partial(jaxrewrite.bind, primitive, **params)
    # What no result is computed from is no step of the program, either.
    with unrecorded():
        outside = jax.eval_shape(function, *arrays)
    loses_all = not any(isinstance(x, Annotated) for x in outside)
    if loses_all and any(isinstance(x.array, Annotated) for x in annotated):
        return NotImplemented
    inside = function(*(x.array if is_outer else x for x, is_outer in pairs))
    return [
        around._with_array(result) if isinstance(around, Annotated) else result
        for around, result in zip(outside, inside, strict=True)
    ]
