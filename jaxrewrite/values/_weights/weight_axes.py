"""Which axes of a weight its products sum, from the program that uses it."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite import primitives

from .._base.chosen import leaves_by_path
from .._base.structured import Structured
from .coded import TAKES_WEIGHTS, is_floating
from .concatenated import parts_of_several


class WeightAxes(NamedTuple):
    """The axes of a weight that a product sums, and those that it keeps. Others are of a stack."""

    rows: tuple[int, ...]
    cols: tuple[int, ...]


Axes: TypeAlias = tuple[Iterable[int], Iterable[int]]
AnyAxes: TypeAlias = Axes | Mapping[str, Axes] | Callable[[str, Any], Axes | None] | None


def weight_axes(
    fn: Callable[..., Any], params: Any, *args: Any, **kwargs: Any
) -> dict[str, WeightAxes]:
    """Find out which axes of its weights a program sums.

    Weights lie in memory in many ways: as (in, out) in Flax, as (out, in) in Equinox, with an
    axis for the layers of a scan, with heads apart. What tells them from each other is the
    program. The result says it to `adapt` and to `quantise`, as their ``axes``. Nothing is
    computed: the program is traced, as by `jax.eval_shape`.

    Parameters
    ----------
    fn
        The function that uses the weights, such as the ``apply`` of a Flax module. If it is a
        module itself, give ``lambda model, x: model(x)``.
    params
        Its first argument, the pytree with the weights. Weights may be `jax.ShapeDtypeStruct`.
    *args, **kwargs
        Its other arguments. Only the shapes and dtypes of arrays matter.

    Returns
    -------
    dict
        For each weight that meets an array in a product, a convolution or a lookup, by its path
        (``"params/attention/query/kernel"``): a named tuple of ``rows``, the axes that are
        summed, and ``cols``, those that the result has. Other axes are those of a stack: of the
        layers of a scan, or of a batch of weights. A table in which rows are looked up has the
        axes of what is looked up as ``rows``, as it has in the product that makes the tokens
        again. If products differ, the first one in the program decides. A weight of which the
        program makes another array before, as by a mask, is not found.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jaxrewrite.values import weight_axes
    >>> params = {"embed": jnp.ones((32, 8)), "layers": jnp.ones((3, 8, 8)), "out": jnp.ones((4, 8))}
    >>> def model(params, tokens):
    ...     x = params["embed"][tokens]
    ...     x, _ = jax.lax.scan(lambda x, w: (x @ w, None), x, params["layers"])
    ...     return x @ params["out"].T
    >>> for path, axes in weight_axes(model, params, jnp.zeros(5, int)).items():
    ...     print(path, *axes)
    embed (1,) (0,)
    layers (1,) (2,)
    out (1,) (0,)
    """
    record = _Record()
    paths, leaves, treedef = leaves_by_path(params)
    others, others_treedef = jax.tree.flatten((args, kwargs))

    def run(own: dict[int, Any], rest: dict[int, Any]) -> None:
        """Trace with arrays in the place of all that has a shape."""
        stood_in = {
            i: _StandIn.of(x, paths[i], record) if is_floating(x) else x
            for i, x in own.items()
        }
        params = jax.tree.unflatten(treedef, _filled(leaves, stood_in))
        args, kwargs = jax.tree.unflatten(others_treedef, _filled(others, rest))
        jaxrewrite.transform(fn, materialise="allow")(params, *args, **kwargs)

    jax.eval_shape(run, _avals(leaves), _avals(others))
    found = record.lookups | record.products
    return {path: found[path] for path in paths if path in found}


def _avals(leaves: list[Any]) -> dict[int, Any]:
    """The shapes and dtypes of the arrays and values in a list, by their positions."""
    return {
        i: jax.ShapeDtypeStruct(x.shape, x.dtype)
        for i, x in enumerate(leaves)
        if hasattr(x, "shape") and hasattr(x, "dtype")
    }


def _filled(leaves: list[Any], arrays: dict[int, Any]) -> list[Any]:
    return [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]


def axes_of_leaf(caller: str, axes: AnyAxes, path: str, w: Any) -> WeightAxes:
    """The axes of a chosen weight, by what a user gave: by default, the two of a matrix."""
    if isinstance(axes, Mapping):
        if path not in axes:
            raise ValueError(
                f"{caller}: axes says nothing of {path}, of shape {w.shape}. If weight_axes made it, the "
                "function did not multiply this weight with an array, or made another array of it "
                "before, as a mask does. Leave it out, by where, or add its rows and columns to axes."
            )
        axes = axes[path]
    elif callable(axes):
        axes = axes(path, w)
    if axes is None:
        if w.ndim != 2:
            raise ValueError(
                f"{caller}: {path} has shape {w.shape}, which is not that of a matrix. Say which "
                "axes are summed and which are kept: give axes=weight_axes(fn, params, x), which "
                "finds it out from the function that uses the weights, or a pair such as "
                "axes=((1,), (2,)) for stacked kernels of shape (layers, in, out)."
            )
        axes = (0,), (1,)
    rows, cols = _groups(caller, axes, path)
    if not all(-w.ndim <= axis < w.ndim for axis in rows + cols):
        raise ValueError(f"{caller}: {path} has shape {w.shape}, and no axes {axes}.")
    found = WeightAxes(*(tuple(axis % w.ndim for axis in group) for group in (rows, cols)))
    if len({*found.rows, *found.cols}) < len(found.rows + found.cols):
        raise ValueError(f"{caller}: {path} has an axis that is twice in axes {axes}.")
    return found


def _groups(caller: str, axes: Any, path: str) -> list[tuple[int, ...]]:
    """The axes that are summed, and those that are kept."""
    try:
        groups = [tuple(map(operator.index, group)) for group in axes]
    except TypeError:
        groups = []
    if len(groups) != 2:
        raise ValueError(
            f"{caller}: axes says {axes!r} of {path}. It must be the axes that are summed and those "
            "that are kept, such as ((0,), (1,))."
        )
    return groups


class _Record:
    """What was found, by the paths of weights."""

    def __init__(self) -> None:
        self.products: dict[str, WeightAxes] = {}
        self.lookups: dict[str, WeightAxes] = {}


class _StandIn(Structured):
    """An array in the place of a weight, which knows where the axes of the weight have gone.

    For each axis of the weight there is a leaf with several entries along this axis, and with
    one along all others. So its lengths, as they move with the array, tell the axis.
    """

    axes = {"array": "...", "along": ".../block"}
    _may_grow = frozenset({"along"})

    array: Array
    along: tuple[Array, ...]
    path: str = jaxrewrite.field(static=True)
    record: _Record = jaxrewrite.field(static=True)

    @classmethod
    def of(cls, weight: Any, path: str, record: _Record) -> _StandIn:
        ones = [1] * weight.ndim
        shapes = ([*ones[:i], n, *ones[i + 1 :]] for i, n in enumerate(weight.shape))
        return cls(weight, tuple(jnp.zeros(s, jnp.int8) for s in shapes), path, record)

    def materialise(self) -> Any:
        return self.array

    def note(
        self,
        table: dict[str, WeightAxes],
        summed: Iterable[int],
        stacked: Iterable[int] = (),
    ) -> None:
        """Note which axes of the weight are summed: those that some axes of the array are of."""
        summed, stacked = {*summed}, {*stacked}
        kept = {*range(self.ndim)} - summed - stacked
        if any(self.shape[i] > 1 and not self._of_weight({i}) for i in summed | kept):
            return  # The bias of a batch, whose axes the product keeps.
        rows, of_kept = self._of_weight(summed), self._of_weight(kept)
        cols = of_kept - rows
        # Nothing tells where an axis of length one has gone, but only how many there must be.
        short = [k for k, leaf in enumerate(self.along) if leaf.size == 1]
        for axes, of_array in ((cols, kept), (rows, summed)):
            while short and len(axes) < len(of_array):
                axes.add(short.pop())
        if kept and not (of_kept or cols):
            return  # The bias of a batch of one.
        table.setdefault(self.path, WeightAxes(tuple(sorted(rows)), tuple(sorted(cols))))

    def _of_weight(self, axes: set[int]) -> set[int]:
        """The axes of the weight of which some axes of the array are, or are a part."""
        return {k for k, leaf in enumerate(self.along) for i in axes if leaf.shape[i] > 1}


@jaxrewrite.register(*primitives.UNARY, "convert_element_type")
def _(v: _StandIn, *, primitive, **params) -> Any:
    return dataclasses.replace(v, array=primitive.bind(v.array, **params))


@jaxrewrite.register(*primitives.BINARY, exchange="types")
def _(x: _StandIn, y: ArrayLike, *, primitive, **params) -> Any:
    v, other = (x, y) if isinstance(x, _StandIn) else (y, x)
    if jnp.broadcast_shapes(jnp.shape(other), v.shape) != v.shape:
        return NotImplemented  # It repeats the weight.
    operands = (z.array if z is v else z for z in (x, y))
    return dataclasses.replace(v, array=primitive.bind(*operands, **params))


@jaxrewrite.register("concatenate")
def _(*vs: _StandIn, dimension, **params) -> Any:
    return parts_of_several(vs, dimension, [v.path for v in vs])


@jaxrewrite.register("dot_general", types=(_StandIn, _StandIn))
@jaxrewrite.register("dot_general", exchange="types")
def _(x: _StandIn, y: ArrayLike, *, dimension_numbers, **params) -> Any:
    for v, summed, stacked in zip((x, y), *dimension_numbers, strict=True):
        # A vector is a bias, or a row that was looked up.
        if isinstance(v, _StandIn) and v.ndim - len(stacked) > 1:
            v.note(v.record.products, summed, stacked)
    return NotImplemented


@jaxrewrite.register("conv_general_dilated", types=(_StandIn, _StandIn))
@jaxrewrite.register("conv_general_dilated")
def _(x: ArrayLike, v: _StandIn, *, dimension_numbers, **params) -> Any:
    _, *summed = dimension_numbers.rhs_spec
    v.note(v.record.products, summed)
    return NotImplemented


@jaxrewrite.register("gather", "dynamic_slice")
def _(v: _StandIn, *indices: ArrayLike, primitive, slice_sizes, **params) -> Any:
    are_weights = TAKES_WEIGHTS[primitive.name](v.shape, slice_sizes=slice_sizes, **params)
    if v.ndim > 1 and not are_weights:
        numbers = params.get("dimension_numbers")
        stack = numbers.operand_batching_dims if numbers else ()
        rows = [i for i, n in enumerate(slice_sizes) if n > 1 and i not in stack]
        v.note(v.record.lookups, rows, stack)
        # Rows that are looked up are no weight.
        return primitive.bind(v.array, *indices, slice_sizes=slice_sizes, **params)
    return NotImplemented
