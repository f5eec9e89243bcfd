"""Products of groups of rows with stacks of quantised weights, as in a mixture of experts.

JAX multiplies the dense weights of all groups. On a CPU it multiplies each of them with all rows,
those of other groups set to zero. So there the groups of large weights are multiplied one after
the other, in the way that is fastest for one, and those without rows are not read at all.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import _compat
from jaxrewrite._axes.groups import members

from .._base.loops import scan
from .._base.placement import is_manual, may_be_split
from .._base.ragged import Groups, groups_of
from .coded import Coded
from .products import multiplied
from .terms import Terms


# The least weight, of all groups, for which one after the other takes less time.
_SMALLEST = 2**19


@jaxrewrite.register("ragged_dot_general")
def _(x: ArrayLike, v: Coded, sizes: ArrayLike, *, primitive, **params) -> Any:
    groups = groups_of(x, v, sizes, **params)
    if groups is None or v.sees_operands:
        return NotImplemented
    x, sizes = map(jnp.asarray, (x, sizes))
    of_weight = tuple(label for label in groups.y if label != groups.group)
    how = params["preferred_element_type"], params["precision"]
    terms = Terms(of_weight, groups.x, groups.out, *how).of(v, x)

    def multiply(x: Any, v: Coded, sizes: Any) -> Any:
        return primitive.bind(x, v.materialise(), sizes, **params)

    at_once = functools.partial(_compat.call_after, multiply)
    if v.size < _SMALLEST or may_be_split() or is_manual():
        return at_once(x, v, sizes)
    one_by_one = functools.partial(_one_by_one, groups=groups, terms=terms)
    return lax.platform_dependent(x, v, sizes, cpu=one_by_one, default=at_once)


def _one_by_one(x: Any, v: Coded, sizes: Any, groups: Groups, terms: Terms) -> Any:
    axis = groups.y.index(groups.group)
    outer = [groups.x.index(label) for label in groups.outer]
    are_in_groups = members(sizes, x.shape, groups.x.index(groups.rows), outer)

    @jax.checkpoint
    def product(i: Any, is_in_group: Any) -> Any:
        of_group = jaxrewrite.transform(
            lambda v, i: lax.dynamic_index_in_dim(v, i, axis, keepdims=False)
        )(v, i)
        rows = jnp.where(is_in_group, x, jnp.zeros((), x.dtype))
        return multiplied(of_group, rows, terms)

    def step(total: Any, group: Any) -> Any:
        i, is_in_group = group
        add = lambda total: total + product(i, is_in_group)
        return lax.cond(is_in_group.any(), add, lambda total: total, total), None

    lengths = dict(zip((*groups.x, *groups.y), (*x.shape, *v.shape), strict=True))
    zeros = jnp.zeros([lengths[label] for label in groups.out], terms.dtype)
    each = jnp.arange(v.shape[axis], dtype=jnp.int32), are_in_groups
    return scan(step, zeros, each)[0]
