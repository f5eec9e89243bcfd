"""`jax.shard_map`: each device's program on its shards of the leaves.

A replicated value has replicated leaves. If a value is split over the mesh, its type
decides how the leaves are split: `Value.leaf_specs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .. import _compat
from .._compat import Atom, JaxprEqn, Literal, ShapedArray
from .._core.avals import aval_of, avals_of
from .._core.bodies import rewrite_jaxpr
from .._core.builder import Rewritten
from .._core.dense import Reason
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value
from .._placement.leafwise import remedy, specs_of_leaves
from .._staging.program import Program
from ..primitives import COLLECTIVE
from .adapters import MakeDenser, make_denser


_SPLITS = "Primitive {primitive!r} splits a {cls} over a mesh"
_UNEVEN = Reason(
    f"{_SPLITS}, and one of its leaves has no equal parts",
    "Make it of as many blocks as there are devices, or a multiple of them",
)
_OTHER_SHAPE = Reason(
    f"{_SPLITS}, and its metadata has the shape of the array, or its leaves are not split",
    "Compute the shape of {cls} from its leaves, and split them in leaf_specs",
)
_DIFFERS = Reason(
    "Primitive {primitive!r} returns a {cls} with a leaf that may differ from device to "
    "device and is not split",
    "Split it in {cls}.leaf_specs",
)


def shard_map_handler(site: Site, operands: list[Operand]) -> Results:
    params = site.params
    has_values = any(map(is_value, operands))
    in_specs: list[Any] = []
    for i, (spec, var) in enumerate(
        zip(params["in_specs"], params["jaxpr"].invars, strict=True)
    ):

        def split(x: Any, spec: Any = spec, there: Any = var.aval) -> list[Any] | Reason:
            return _leaf_specs(x, spec, there, params["mesh"], _shard_shape)

        operand: Any = operands[i]
        while isinstance(specs := split(operand), Reason):
            operand = operands[i] = make_denser(site, operand, specs)
        in_specs.extend(specs)
    leaves, in_tree = tree_flatten(operands)

    steps: list[tuple[int, Reason]] = []

    def rewrite(shards: Sequence[Any]) -> Rewritten:
        local = tree_unflatten(in_tree, shards)
        # Results that become dense do so inside of the mesh axes, too.
        inside = site._replace(eqn=_compat.in_current_context(site.eqn))
        leaving = MakeDenser(tuple(steps))
        return rewrite_jaxpr(inside, params["jaxpr"], local, leaving=leaving)

    def on_mesh(body: Callable[..., Any], out_specs: Sequence[Any]) -> Any:
        return jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=tuple(in_specs),
            out_specs=tuple(out_specs),
            check_vma=params["check_vma"],
            axis_names=set(params["newly_manual_axes"]),
        )

    rewritten = _within(on_mesh, rewrite, leaves, site)
    if not has_values and not rewritten.changed:
        return NotImplemented  # The equation stays as it is.
    while True:
        vary = _varying(rewritten, in_specs, params)
        flat_specs: list[Any] = []
        num_steps = len(steps)
        for i, result in enumerate(rewritten.results()):
            spec, there = params["out_specs"][i], site.outvars[i].aval
            specs = _leaf_specs(result, spec, there, params["mesh"], _whole_shape)
            if isinstance(specs, Reason):
                steps.append((i, specs))
            elif _is_apart(result, specs, spec, vary):
                steps.append((i, _DIFFERS))
            else:
                flat_specs.extend(specs)
        if len(steps) == num_steps:
            break
        rewritten = _within(on_mesh, rewrite, leaves, site)

    def body(*shards: jax.Array) -> tuple[Any, ...]:
        return tuple(Program(rewritten.jaxpr, rewritten.consts)(shards))

    site.take_over(rewritten._replace(consts=[]))  # The body closes over the constants.
    fn = on_mesh(body, flat_specs)
    results = site.call_on_arrays(lambda *leaves: list(fn(*leaves)), leaves)
    return tree_unflatten(rewritten.out_tree, results)


handlers["shard_map"] = shard_map_handler


def _within(
    on_mesh: Callable[..., Any],
    rewrite: Callable[[Sequence[Any]], Rewritten],
    leaves: Sequence[Any],
    site: Site,
) -> Rewritten:
    """Rewrite the body where it will run: inside of the mesh axes."""
    bodies: list[Rewritten] = []

    def body(*shards: jax.Array) -> tuple[()]:
        bodies.append(rewrite(shards))
        return ()

    fn = on_mesh(body, ())
    debug_info = _compat.new_debug_info("shard_map", fn)
    with site.context.manager:
        _compat.trace_to_jaxpr(lambda *leaves: fn(*leaves), avals_of(leaves), debug_info)
    return bodies[0]


# --- how leaves are split ---------------------------------------------------------


def _leaf_specs(
    operand: Operand, spec: PartitionSpec, there: Any, mesh: Any, resize: Callable[..., Any]
) -> list[Any] | Reason:
    """The specs of the leaves, or the reason why they cannot be split.

    ``there`` is the aval on the other side of the boundary. There the leaves have the
    shapes that ``resize`` returns.
    """
    if not is_value(operand):
        return [spec]
    value = tree_map(_compat.leaf_aval, operand)
    specs = specs_of_leaves(value, spec)
    if isinstance(specs, type):
        return Reason(_SPLITS, remedy(specs))
    leaves, treedef = tree_flatten(value)
    shapes = [
        resize(leaf.shape, split, mesh) for leaf, split in zip(leaves, specs, strict=True)
    ]
    if None in shapes:
        return _UNEVEN
    pairs = zip(shapes, leaves, strict=True)
    avals = [ShapedArray(shape, leaf.dtype) for shape, leaf in pairs]
    if aval_of(tree_unflatten(treedef, avals)).shape != there.shape:
        return _OTHER_SHAPE
    return specs


def _is_apart(
    result: Any, specs: Sequence[Any], spec: PartitionSpec, vary: Callable[[Any], Set[Any]]
) -> bool:
    """Whether a leaf may differ along a mesh axis that splits the array, but not the leaf."""
    return any(
        vary(leaf) & _all_names(spec) - _all_names(split)
        for leaf, split in zip(tree_leaves(result), specs, strict=True)
    )


def _names(entry: object) -> tuple[Any, ...]:
    """The mesh axes in an entry of a spec."""
    names = entry if isinstance(entry, tuple) else (entry,)
    return tuple(name for name in names if name is not None)


def _all_names(spec: PartitionSpec) -> set[Any]:
    """The mesh axes that split an array."""
    return {name for entry in spec for name in _names(entry)}


def _varying(
    rewritten: Rewritten, in_specs: Sequence[PartitionSpec], params: Mapping[str, Any]
) -> Callable[[Any], Set[Any]]:
    """The mesh axes over which each variable of a body may vary.

    JAX knows them, unless ``check_vma`` is false. Then they are the axes of the shards that lead
    to the variable.
    """
    if params["check_vma"]:
        return lambda atom: _compat.varying_axes(atom.aval)
    jaxpr = rewritten.jaxpr
    shards = jaxpr.invars[len(rewritten.consts) :]
    axes: dict[Any, Set[Any]] = dict(zip(shards, map(_all_names, in_specs), strict=True))

    def known(atom: Atom) -> Set[Any]:
        return set() if type(atom) is Literal else axes.get(atom, set())

    for eqn in jaxpr.eqns:
        if eqn.effects or _communicates(eqn):
            names = {*params["mesh"].axis_names}
        else:
            names = set().union(*map(known, eqn.invars))
        axes.update(dict.fromkeys(eqn.outvars, names))
    return known


def _communicates(eqn: JaxprEqn) -> bool:
    """Whether an equation, or one in its bodies, knows on which device it is."""
    return eqn.primitive.name in COLLECTIVE or any(
        any(map(_communicates, body.eqns)) for body in jaxprs_in_params(eqn.params)
    )


def _parts(spec: PartitionSpec, mesh: Any, ndim: int) -> list[int]:
    """The number of parts into which each axis is split."""
    padded = [*spec, *[None] * (ndim - len(spec))]
    return [math.prod(mesh.shape[name] for name in _names(entry)) for entry in padded]


def _shard_shape(shape: Sequence[int], spec: PartitionSpec, mesh: Any) -> Any:
    """The shape of a part; ``None`` if the parts would not be equal."""
    parts = _parts(spec, mesh, len(shape))
    if any(n % part for n, part in zip(shape, parts, strict=True)):
        return None
    return tuple(n // part for n, part in zip(shape, parts, strict=True))


def _whole_shape(shape: Sequence[int], spec: PartitionSpec, mesh: Any) -> Any:
    parts = _parts(spec, mesh, len(shape))
    return tuple(n * part for n, part in zip(shape, parts, strict=True))
