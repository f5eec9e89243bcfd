"""`Tagged`: arrays that leave a mark on whatever depends on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxtyping import Array

import jaxrewrite

from .declaration import Annotated, annotation_rule, mapped


class Tagged(Annotated):
    """An array with tags, which go to every result that is computed from it.

    Each result of a primitive has the tags of all operands. So the tags of a program's
    results show which inputs they depend on. In a backward pass they show which parts of a
    gradient a cotangent reaches. Tags follow the flow of data through equations: a product
    with zero still depends on both factors. The results of a conditional have the tags of
    both branches and of the index that chooses a branch. The results of a loop have the
    tags of its body, but not those of what only decides how often it runs: the condition of a
    ``while_loop``, and so the bounds of a ``fori_loop``. Its index has the tags of the lower
    bound.

    Parameters
    ----------
    array
        An array, or another value, of any shape and dtype. One with tags keeps them besides.
    tags
        A string or several strings.

    Attributes
    ----------
    array : Array
        The array itself, which ``materialise`` returns.
    tags : frozenset of str
        The tags, as metadata.

    Raises
    ------
    ValueError
        If a tag is not a string, or there is no tag.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Tagged
    >>> def layer(x, w, b):
    ...     return {"hidden": x @ w, "norm": jnp.sum(b**2)}
    >>> x, w = jnp.ones((2, 3)), Tagged(jnp.ones((3, 4)), "w")
    >>> jaxrewrite.transform(layer)(x, w, jnp.ones(4))
    {'hidden': Tagged([[3. 3. 3. 3.]
                       [3. 3. 3. 3.]] #w, dtype=float32),
     'norm': Array(4., dtype=float32)}

    Which parts of a gradient does a cotangent reach?

    >>> def backward(x, cotangent):
    ...     _, pull = jax.vjp(lambda x: {"sum": x["a"].sum(), "b": x["b"]}, x)
    ...     return pull(cotangent)[0]
    >>> x = {"a": jnp.ones(2), "b": jnp.ones(3)}
    >>> cotangent = {"sum": Tagged(jnp.ones(()), "sum"), "b": jnp.ones(3)}
    >>> jaxrewrite.transform(backward)(x, cotangent)
    {'a': Tagged([1. 1.] #sum, dtype=float32), 'b': Array([1., 1., 1.], dtype=float32)}
    """

    outer = 50

    # Only the tags are lost. Derivative rules get arrays without tags.
    materialise_policy = "allow"

    _is_said_of_the_whole = True

    array: Array
    tags: frozenset[str] = jaxrewrite.field(static=True)

    def __init__(self, array: Any, tags: str | Iterable[str]):
        is_some = not isinstance(tags, str) and isinstance(tags, Iterable)
        all_tags = tuple(tags) if is_some else (tags,)
        if not all_tags or not all(isinstance(tag, str) for tag in all_tags):
            raise ValueError(f"Tagged: tags must be strings, at least one; got {tags!r}.")
        tag_set = frozenset(map(str, all_tags))
        if isinstance(array, Tagged):
            array, tag_set = array.array, array.tags | tag_set
        vars(self).update(array=array, tags=tag_set)

    def _merged(self) -> Any:
        return Tagged(self.array, self.tags)

    def picture(self) -> Any:
        return self.array, *(f" #{tag}" for tag in sorted(self.tags))

    @staticmethod
    def default(primitive: Any, values: Sequence[Any], params: dict[str, Any]) -> Any:
        """Apply any primitive to the arrays, and tag each result."""
        if primitive.name in jaxrewrite.primitives.IDENTITY:
            return NotImplemented  # The primitive passes on each operand separately.
        tags = frozenset().union(*(x.tags for x in values if isinstance(x, Tagged)))
        results = jaxrewrite.bind(primitive, *map(_untagged, values), **params)
        return mapped(lambda result: Tagged(result, tags), primitive, results)

    def join(self, other: Any) -> Any:
        """Give both the tags of both."""
        tags = self.tags | other.tags if isinstance(other, Tagged) else self.tags
        return Tagged(self.array, tags), Tagged(_untagged(other), tags)


@annotation_rule(Tagged)
@annotation_rule(Tagged, *jaxrewrite.primitives.SHAPE, *jaxrewrite.primitives.INDEXING)
@annotation_rule(Tagged, "custom_linear_solve", "custom_vmap_call")
def _tag(*operands: Any, primitive: Any, **params: Any) -> Any:
    """The same as `default`, but it comes before the rules of other types."""
    return Tagged.default(primitive, operands, params)


@jaxrewrite.register("cond")
def _choose(index: Tagged, *operands: Any, **params: Any) -> Any:
    """Give all results the tags of the index that chooses a branch."""
    results = jaxrewrite.bind("cond", index.array, *operands, **params)
    return [Tagged(x, index.tags) for x in results]


def _untagged(x: Any) -> Any:
    return x.array if isinstance(x, Tagged) else x
