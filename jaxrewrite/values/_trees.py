"""Helpers for pytrees of values: adapters, trained and frozen parts, and their bytes."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr
from jaxtyping import Array

import jaxrewrite

from ._base.chosen import chosen_leaves, leaves_by_path
from ._base.progress import Progress, shown
from ._base.random_keys import check_key
from ._base.structured import bytes_text, is_value, nbytes_of
from ._weights.adapters import INITS, METHODS, Adapter, adapted, lengths_of
from ._weights.quantise import check_format, quantised_along
from ._weights.weight_axes import AnyAxes, WeightAxes, axes_of_leaf


def adapt(
    tree: Any,
    where: Callable[[str, Any], bool],
    rank: int,
    key: Array,
    *,
    scale: float = 1.0,
    axes: AnyAxes = None,
    method: str = "lora",
    init: str = "random",
    bits: int | str | None = None,
    block: int | None = None,
    progress: Progress | None = None,
) -> Any:
    r"""Replace chosen weights of a pytree by weights with an adapter: `Lora`, or `Dora`.

    The factor ``a`` is random, of standard deviation :math:`1/\sqrt{n}` for ``n`` row
    entries. The factor ``b`` is zero, so that the model does not change (section 4.1 of
    arXiv:2106.09685). Both have the dtype of the weight.

    Parameters
    ----------
    tree
        Any pytree: an Equinox module, parameters of Flax, nested dictionaries. Its leaves may be
        values, such as quantised weights.
    where
        A predicate, called with the path and the leaf of each floating-point array or
        value. It returns whether to adapt the leaf. A path is that of
        `jax.tree_util.keystr` with ``simple=True, separator="/"``:
        ``"params/attention/query/kernel"``, ``"layers/0/weight"``.
    rank
        The rank of each change.
    key
        A key for `jax.random`.
    scale
        The number that multiplies each change: alpha over the rank, or over its root, as
        rank-stabilised LoRA has it (arXiv:2312.03732).
    axes
        Which axes of each weight are its rows and its columns: what `weight_axes` found out,
        for any weights. Or the pair ``(rows, cols)`` of a weight, such as ``((0,), (1, 2))`` for
        the shape (features, heads, head size); a mapping from paths to pairs; or a function
        of the path and the leaf that returns the pair. All other axes are batch axes, as in
        stacked layers. ``None`` means the two axes of a matrix, of which the first is that of the
        rows. A DoRA has the lengths of its columns, and `dropout` drops entries of what products sum
        with the rows: so for a weight (out, in), as in Equinox, say that the rows are the inputs.
    method
        ``"lora"``; ``"dora"``, which gives a `Dora`; or ``"vera"`` (arXiv:2310.11454), a `Lora`
        whose factors are random and stay so: the first rows and columns of one pair of matrices,
        for all weights. They are `Rescaled`, with a number for each rank
        and each column, and only these are trained: label them by
        ``freeze(tree, {Lora: ["w"], Rescaled: ["w"]}, rest="freeze")``.
    init
        What the factors are at first. ``"random"`` is as above. ``"pissa"`` takes the largest
        singular values of the weight into the change, and leaves the rest in ``w``
        (arXiv:2404.02948). ``"loftq"`` takes those of what quantising loses, in five turns of
        rounding and taking (arXiv:2310.08659). It needs ``bits``.
    bits, block
        Quantise what stays beside the change, in a format of `quantise`, with blocks along the
        rows. The default leaves it as it is.
    progress
        A function to show the progress, such as ``tqdm.tqdm``. It is called with the paths of
        the chosen leaves, and returns an iterator over them. The next item is taken as the
        work on a leaf begins.

    Returns
    -------
    Any
        The same pytree, with a `Lora` or a `Dora` for each chosen leaf.

    Raises
    ------
    ValueError
        If no leaf is chosen, a chosen leaf has more or fewer than two axes and no ``axes``,
        ``axes`` lacks it, or it lacks one of its ``axes``, ``rank`` is not positive, or what ``progress`` returns has more or fewer items than leaves were chosen.
        If ``method``, ``init`` or ``bits`` is none of these, or they do not go together: ``"vera"`` has
        random factors, ``"loftq"`` needs ``bits``, and ``"pissa"`` of a weight that is quantised
        already needs them.
    TypeError
        If ``key`` is no key, or ``where`` no function.

    Warns
    -----
    UserWarning
        If ``rank`` is higher than that of a whole weight.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite import values
    >>> params = {"dense": {"kernel": jnp.ones((3, 4)), "bias": jnp.zeros(4)}}
    >>> is_kernel = lambda path, leaf: path.endswith("kernel")
    >>> adapted = values.adapt(params, is_kernel, rank=2, key=jax.random.key(0))
    >>> adapted["dense"]["kernel"].b.shape
    (2, 4)
    >>> model = lambda p, x: x @ p["dense"]["kernel"] + p["dense"]["bias"]
    >>> jaxrewrite.transform(model)(adapted, jnp.ones(3))
    Array([3., 3., 3., 3.], dtype=float32)

    The layers of a scan, stacked:

    >>> layers = jnp.ones((5, 4, 4))
    >>> deep = lambda layers, x: jax.lax.scan(lambda x, w: (x @ w, None), x, layers)[0]
    >>> axes = values.weight_axes(deep, layers, jnp.ones(4))
    >>> adapted = values.adapt(layers, lambda *_: True, 2, jax.random.key(0), axes=axes)
    >>> adapted.a.shape, adapted.b.shape
    ((5, 4, 2), (5, 2, 4))

    The singular vector of the largest singular value is trained, beside a rest of 4 bits:

    >>> w = jnp.outer(jnp.arange(64.0), jnp.ones(4)) + jnp.eye(64, 4)
    >>> v = values.adapt(w, lambda *_: True, 1, jax.random.key(0), init="pissa", bits="nf4")
    >>> type(v.w).__name__, bool(abs(v.merge() - w).max() < 0.1)
    ('NF4', True)
    """
    if not isinstance(rank, (int, np.integer)) or rank < 1:
        raise ValueError(f"adapt: rank is {rank!r}; it must be an integer of at least 1.")
    check_key("adapt", key)
    rounded = None
    if bits is not None:
        check_format("adapt", bits)
        options = {} if block is None else {"block": block}
        rounded = lambda own, w: quantised_along(own, w, bits, options)
    adapter = Adapter(rank, scale, method, init, rounded)
    _check_adapter(adapter)
    paths, swapped, treedef = leaves_by_path(tree)
    positions = chosen_leaves("adapt", where, paths, swapped, _is_floating)
    keys = list(jax.random.split(key, len(positions)))
    of_leaf = lambda i: axes_of_leaf("adapt", axes, paths[i], swapped[i])
    if method == "vera":  # Its random factors are those of the largest weight, for all.
        keys, sizes = (
            [key] * len(positions),
            [_matrix_shape(swapped[i], of_leaf(i)) for i in positions],
        )
        rows, cols = zip(*sizes, strict=True)
        adapter = adapter._replace(most=(max(rows), max(cols)))
    steps = shown([paths[i] for i in positions], progress)
    for i, leaf_key, _ in zip(positions, keys, steps, strict=True):
        path, w, own = paths[i], swapped[i], of_leaf(i)
        _check_rank(path, w, own, rank)
        if init == "pissa" and bits is None and is_value(w):
            raise ValueError(
                f"adapt: {path} is a {type(w).__name__}, of which PiSSA leaves a dense rest. Say by "
                "bits how to quantise the rest, and adapt the weight before it is quantised."
            )
        try:
            swapped[i] = adapted(w, own, leaf_key, adapter)
        except ValueError as error:
            raise ValueError(f"adapt: {path} can't be adapted. {error}") from error
    return jax.tree_util.tree_unflatten(treedef, swapped)


def _check_adapter(adapter: Adapter) -> None:
    _, scale, method, init, rounded, _ = adapter
    for name, got, known in (("method", method, METHODS), ("init", init, INITS)):
        if got not in known:
            raise ValueError(f"adapt: {name} is {got!r}; it must be one of {known}.")
    if init == "loftq" and rounded is None:
        raise ValueError(
            'adapt: init="loftq" makes up for what quantising loses; give bits.'
        )
    if init != "random" and method == "vera":
        raise ValueError(f'adapt: the factors of VeRA are random; init is "{init}".')
    if init != "random" and scale <= 0:
        raise ValueError(f'adapt: init="{init}" needs a positive scale; got {scale}.')


def _check_rank(path: str, w: Any, axes: WeightAxes, rank: int) -> None:
    sizes = _matrix_shape(w, axes)
    if rank > max(min(sizes), 1):
        warnings.warn(
            f"adapt: {path} has shape {w.shape}, so that any change of it has a rank of at most "
            f"{min(sizes)}, and rank is {rank}: its factors have more numbers than the weight. Give a "
            "lower rank, or leave this leaf out, by where.",
            stacklevel=3,
        )


def _matrix_shape(w: Any, axes: WeightAxes) -> tuple[int, int]:
    """How many rows and columns a weight has."""
    _, rows, cols = lengths_of(w, axes)
    return math.prod(rows), math.prod(cols)


def _is_floating(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


Labels = Mapping[type, Sequence[str] | Mapping[str, str]]


def freeze(tree: Any, fields: Labels, *, rest: str = "train") -> Any:
    """Label the leaves of a pytree with ``"freeze"`` or ``"train"``, or labels of your own.

    The labels are for `optax.multi_transform`, with an optimiser for ``"train"`` and
    ``optax.set_to_zero()`` for ``"freeze"``. Frozen leaves do not change and have no
    moments. If a pytree is callable, such as an Equinox module, so are its labels; give
    Optax ``lambda _: labels``. Optax can't add the derivatives of frozen integers, such as
    those of a quantised weight: see `train_only`, and `partition`.

    Parameters
    ----------
    tree
        A pytree that contains values, at any depth.
    fields
        The names of the fields to freeze, with all that is in them, for each type of value; or
        a dictionary with the label of each such field. The names for a base class hold for its
        subclasses. All other fields of these types have the label ``"train"``.
    rest
        The label of the leaves outside values of these types: ``"train"``, or
        ``"freeze"``, to train the adapters alone.

    Returns
    -------
    Any
        A pytree of the same structure, with labels as leaves.

    Raises
    ------
    ValueError
        If a type has no field of that name, or ``rest`` is neither of the two labels.
    TypeError
        If ``fields`` is no dictionary of lists by classes.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jaxrewrite.values import Lora, freeze
    >>> v = Lora(jnp.ones((3, 4)), jnp.ones((3, 1)), jnp.ones((1, 4)))
    >>> labels = freeze({"kernel": v, "bias": jnp.zeros(4)}, {Lora: ["w"]})
    >>> jax.tree.leaves(labels)
    ['train', 'freeze', 'train', 'train']

    LoRA+ trains the second factor faster (arXiv:2402.12354). That is a label of its own:

    >>> import optax
    >>> labels = freeze(v, {Lora: {"w": "freeze", "b": "fast"}})
    >>> optimisers = {"train": optax.adam(1e-4), "fast": optax.adam(16e-4)}
    >>> optimisers["freeze"] = optax.set_to_zero()
    >>> len(jax.tree.leaves(optax.multi_transform(optimisers, labels).init(v)))
    6
    """
    if rest not in ("train", "freeze"):
        raise ValueError(f'freeze: rest is {rest!r}; it must be "train" or "freeze".')
    if not isinstance(fields, Mapping):
        raise TypeError(
            f'freeze: fields is {fields!r}; it must be a dictionary, such as {{Lora: ["w"]}}.'
        )
    for cls, names in fields.items():
        if not isinstance(cls, type):
            raise TypeError(
                f"freeze: {cls!r} is no class. Give the class of the values itself, as in "
                '{Lora: ["w"]}.'
            )
        if isinstance(names, str):
            raise TypeError(
                f"freeze: {names!r} is no list of fields. Write "
                f'{{{cls.__name__}: ["{names}"]}}.'
            )
        for name in names:
            if name not in getattr(cls, "__dataclass_fields__", {}):
                raise ValueError(f"freeze: {cls.__name__} has no field {name!r}.")

    def label(x: Any, outer: str) -> Any:
        own: dict[str, str] = {}
        for cls, names in fields.items():
            if isinstance(x, cls):
                outer = "train"
                frozen = dict.fromkeys(names, "freeze")
                own |= names if isinstance(names, Mapping) else frozen

        def of_field(path: Any, field: Any) -> Any:
            name = getattr(path[0], "name", None) if path else None
            if name in own:
                return jax.tree.map(lambda _: own[name], field)
            return label(field, outer) if is_value(field) else outer

        is_field = lambda y: y is not x and is_value(y)
        return jax.tree_util.tree_map_with_path(of_field, x, is_leaf=is_field)

    return label(tree, rest)


def partition(tree: Any, labels: Any) -> tuple[Any, Any]:
    """Split a pytree into its trained and its frozen part, by the labels of `freeze`.

    A leaf is frozen if its label is ``"freeze"``, and trained with any other.
    Both parts have the structure of the pytree, with ``None`` for each leaf of the other
    part. So a gradient, or an optimiser, of the first part does not see the second.
    `combine` puts the parts together.

    Raises
    ------
    TypeError
        If a label is no string, as in a mask of booleans.
    ValueError
        If a label is nearly ``"freeze"``, such as ``"frozen"`` or ``"Freeze"``, and so would be
        taken for one of your own, which trains the leaf.

    Examples
    --------
    The weight keeps its 4-bit integers:

    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Lora, NF4, combine, freeze, partition
    >>> base = NF4.quantise(jax.random.normal(jax.random.key(0), (64, 4)))
    >>> v = Lora(base, jnp.ones((64, 1)), jnp.zeros((1, 4)))
    >>> trained, rest = partition(v, freeze(v, {Lora: ["w"]}))
    >>> len(jax.tree.leaves(trained)), len(jax.tree.leaves(rest))
    (2, 4)
    >>> loss = jaxrewrite.transform(lambda v, x: ((x @ v) ** 2).sum(), materialise="forbid")
    >>> gradient = jax.grad(lambda part, x: loss(combine(part, rest), x))
    >>> gradient(trained, jnp.ones(64)).b.shape
    (1, 4)
    """
    return _partition("partition", tree, labels)


def _partition(caller: str, tree: Any, labels: Any) -> tuple[Any, Any]:
    is_frozen = jax.tree_util.tree_map_with_path(
        lambda path, _, label: _freezes(caller, path, label), tree, labels
    )
    part = lambda which: jax.tree.map(
        lambda x, frozen: x if frozen is which else None, tree, is_frozen
    )
    return part(False), part(True)


def _freezes(caller: str, path: Any, label: Any) -> bool:
    """Whether a label freezes its leaf; raise for one that is surely meant in another way."""
    is_text = isinstance(label, str)
    if is_text and (label == "freeze" or not _is_nearly_freeze(label.strip().casefold())):
        return label == "freeze"
    where = keystr(path, simple=True, separator="/") or "the leaf"
    if not is_text:
        raise TypeError(
            f"{caller}: the label of {where} is {label!r}; it must be a string: "
            '"freeze", "train", or one of your own.'
        )
    raise ValueError(
        f'{caller}: the label of {where} is {label!r}, which is not "freeze". A leaf with '
        'any other label is trained, so write "freeze", or a name that is less alike.'
    )


def _is_nearly_freeze(word: str) -> bool:
    """Whether a word is a misspelling; "free" is not alike enough, and "unfreeze" means to train."""
    if not word.startswith("fr"):
        return False
    return bool(difflib.get_close_matches(word, ("freeze", "frozen"), cutoff=0.82))


def combine(*parts: Any) -> Any:
    """Put together the parts of a pytree that `partition` returned."""
    is_none = lambda x: x is None
    return jax.tree.map(
        lambda *xs: next((x for x in xs if x is not None), None), *parts, is_leaf=is_none
    )


def train_only(optimiser: Any, labels: Callable[[Any], Any]) -> Any:
    """Let an optimiser of Optax train the leaves that are not labelled ``"freeze"``, and no others.

    The frozen ones get no state and do not change: their updates are zeros of their own dtype.
    This is for code that updates all parameters, such as ``flax.nnx.Optimizer``. With
    `optax.multi_transform` the updates of integers are derivatives of dtype float0, which
    `optax.apply_updates` can't add.

    Parameters
    ----------
    optimiser
        An `optax.GradientTransformation`, such as ``optax.adamw(1e-3)``, or any other object with
        the functions ``init`` and ``update``, such as an `optax.MultiSteps`.
    labels
        A function of the parameters that returns their labels, as `freeze` does:
        ``lambda params: freeze(params, {Lora: ["w"]})``.

    Returns
    -------
    Any
        An optimiser of the same type, if that is a named tuple, as those of Optax are. Else a named
        tuple of ``init`` and ``update``. Its ``update`` needs the parameters.

    Raises
    ------
    TypeError
        If ``optimiser`` has no ``init`` and ``update``, or ``labels`` is no function. By ``init`` and
        ``update``, of labels that are no strings, as in `partition`.
    ValueError
        If ``update`` is called without the parameters. By ``init`` and ``update``, of labels that are
        nearly ``"freeze"``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite, optax
    >>> from jaxrewrite.values import Lora, Quantised, freeze, train_only
    >>> base = Quantised.quantise(jnp.ones((3, 4)), axis=-1)
    >>> v = Lora(base, jnp.ones((3, 1)), jnp.zeros((1, 4)))
    >>> optimiser = train_only(optax.adam(0.1), lambda v: freeze(v, {Lora: ["w"]}))
    >>> state = optimiser.init(v)
    >>> loss = jaxrewrite.transform(lambda v, x: (x @ v).sum())
    >>> gradient = jax.grad(loss, allow_int=True)(v, jnp.ones(3))
    >>> updates, state = optimiser.update(gradient, state, v)
    >>> new = optax.apply_updates(v, updates)
    >>> new.w.q.dtype, new.b
    (dtype('int8'), Array([[-0.1, -0.1, -0.1, -0.1]], dtype=float32))
    """

    parts = (getattr(optimiser, name, None) for name in ("init", "update"))
    if isinstance(optimiser, type) or not all(map(callable, parts)):
        raise TypeError(
            f"train_only: optimiser is {optimiser!r}. It must have functions init and update, as "
            "optax.adam(1e-3) has."
        )
    if not callable(labels):
        raise TypeError(
            f"train_only: labels is a {type(labels).__name__}. It must be a function of the "
            'parameters, such as lambda params: freeze(params, {Lora: ["w"]}).'
        )

    def init(params: Any) -> Any:
        return optimiser.init(_partition("train_only", params, labels(params))[0])

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        if params is None:
            raise ValueError(
                "train_only: update needs the parameters, as its third argument."
            )
        of_params = labels(params)
        trained, frozen = _partition("train_only", params, of_params)
        updates, _ = _partition("train_only", updates, of_params)
        updates, state = optimiser.update(updates, state, trained, **extra)
        return combine(updates, jax.tree.map(jnp.zeros_like, frozen)), state

    return getattr(optimiser, "_replace", _Optimiser)(init=init, update=update)


class _Optimiser(NamedTuple):
    """What Optax calls a gradient transformation."""

    init: Callable[..., Any]
    update: Callable[..., Any]


class Bytes(NamedTuple):
    """The bytes of a pytree if its values were dense, and of the pytree as it is."""

    dense: int
    implicit: int

    def __str__(self) -> str:
        return f"{bytes_text(self.dense)} dense, {bytes_text(self.implicit)} implicit"


def nbytes(tree: Any) -> Bytes:
    """Count the bytes of all arrays of a pytree: if its values were dense, and as it is.

    Four-bit integers take half a byte. A leaf that is not an array takes nothing.

    Raises
    ------
    TypeError
        If a value lacks leaves, as in a part that `partition` returned.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import LowRank, nbytes
    >>> v = LowRank(jnp.ones((300, 2)), jnp.ones((2, 400)))
    >>> nbytes({"kernel": v, "bias": jnp.zeros(400)})
    Bytes(dense=481600, implicit=7200)
    >>> print(nbytes(v))
    480 kB dense, 5.6 kB implicit
    """
    arrays = jax.tree.leaves(tree, is_leaf=is_value)
    return Bytes(_total([_stand_in(x) for x in arrays]), _total(jax.tree.leaves(tree)))


def _stand_in(x: Any) -> Any:
    """An object with the shape and dtype of a value, or of an array."""
    if isinstance(x, jaxrewrite.ArrayValue):
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    return x.aval() if is_value(x) else x


def _total(leaves: Sequence[Any]) -> int:
    return sum(nbytes_of(x) for x in leaves if hasattr(x, "shape") and hasattr(x, "dtype"))
