"""The same programs, run by the peers in one process.

`Quax <https://github.com/patrick-kidger/quax>`_ does with tracers what this library does
with jaxprs, and has the same rules here. ``jax.experimental.sparse.sparsify`` does it for
JAX's sparse matrices, of which the *Laplacian of a grid* is one, beside SciPy's. One program of each kind, on a LoRA weight, tells which programs each
library runs at all. Its result is compared with that on the dense weight: *implicit*,
*dense* (right, but the weight was made dense), *wrong*, or the error. Qax needs a JAX
from before 0.5, so it cannot run beside the others. `Performance <../performance.rst>`_ names
the release of Quax.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jax import lax
from jax.experimental import sparse

import jaxrewrite

from . import gpt2, measure, mlp
from .model import adapt, check_equal
from .overhead import anew, by_hand, transformers
from .peer import quax_values, to_quax
from .suite import Case, Measurement, Options, Part
from .values import Lora, Sparse, zero_like


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    peer = quax_values()
    if peer is None:
        note = "not installed: python -m pip install -e '.[bench]'"
        progress(f"Quax is {note}")
        yield Case("peers", "all cases").missing("any", "Quax", note)
    yield from _programs(peer, progress)
    yield from _operations(peer, options, progress)
    for layers in options.depths or options.of((2,), (24,), (4, 24, 96, 384)):
        yield from _mlp(peer, layers, options, progress)
    yield from _transformer(peer, options, progress)
    yield from _hardly(peer, options, progress)
    yield from _sparse(options, progress)
    for side in options.of((4,), (100, 316), (100, 316, 1000)):
        yield from _laplacian(side, options, progress)


# --- the cost -----------------------------------------------------------------------


def _timed(
    case: Case,
    variants: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]],
    eagerly: bool,
    options: Options,
    progress: Callable[[str], None],
) -> Iterator[Measurement]:
    """Measure variants, each a function that makes the program anew, and its arguments."""
    progress(f"{case.name}: tracing")
    made = {v: (make(), args) for v, (make, args) in variants.items()}
    jitted = {v: jax.jit(fn) for v, (fn, _) in made.items()}
    check_equal(case.name, {v: jitted[v](*args) for v, (_, args) in made.items()})
    traces = {
        v: (lambda make=make, args=args: jax.jit(make()).trace(*args) and None)
        for v, (make, args) in variants.items()
    }
    few = options.repeats or options.of(2, 8, 60)
    yield from case.timed("trace", measure.interleaved(traces, few))
    if eagerly:
        progress(f"{case.name}: calling eagerly")
        calls = {v: functools.partial(fn, *args) for v, (fn, args) in made.items()}
        samples = measure.interleaved(calls, options.of(2, 15, 60))
        yield from case.timed("eager call", samples)
    progress(f"{case.name}: calling")
    calls = {v: functools.partial(jitted[v], *args) for v, (_, args) in made.items()}
    samples = measure.interleaved(calls, options.of(2, 200, 2000), warm_up=5)
    yield from case.timed("jitted call", samples)


def _mlp(
    peer: Any, layers: int, options: Options, progress: Callable[[str], None]
) -> Iterator[Measurement]:
    triples, x = mlp.weights(layers), mlp.inputs()
    values = [Lora(*triple) for triple in triples]
    variants: dict[str, Any] = {
        "by hand": (lambda: mlp.programs()[1], (triples, x)),
        "implicit": (lambda: jaxrewrite.transform(mlp.programs()[0]), (values, x)),
    }
    if peer is not None:
        variants["Quax"] = (
            lambda: peer.quaxify(mlp.programs()[0]),
            (to_quax(peer, values), x),
        )
    case = Case("peers", "MLP with LoRA", layers)
    yield from _timed(case, variants, layers < 100, options, progress)


def _small(options: Options) -> tuple[gpt2.Config, Any, Any]:
    config = gpt2.Config(options.of(1, 4, 12), width=64, heads=4, vocabulary=128, length=16)
    return config, gpt2.init(config, jax.random.key(0)), jnp.zeros((2, config.length), int)


def _transformer(
    peer: Any, options: Options, progress: Callable[[str], None]
) -> Iterator[Measurement]:
    config, params, ids = _small(options)
    model = functools.partial(gpt2.apply, heads=config.heads)
    values = adapt(params, 4, jax.random.key(2))
    linear = transformers(params)["LoRA"][1]
    written = functools.partial(model, linear=linear)
    variants: dict[str, Any] = {
        "by hand": (lambda: anew(written), (by_hand(values), ids)),
        "implicit": (lambda: jaxrewrite.transform(anew(model)), (values, ids)),
    }
    if peer is not None:
        variants["Quax"] = (
            lambda: peer.quaxify(anew(model)),
            (to_quax(peer, values), ids),
        )
    case = Case("peers", "transformer, LoRA")
    yield from _timed(case, variants, False, options, progress)


def _hardly(
    peer: Any, options: Options, progress: Callable[[str], None]
) -> Iterator[Measurement]:
    config, params, ids = _small(options)
    model = functools.partial(gpt2.apply, heads=config.heads)
    shift = params["norm"]["shift"]
    values = params | {"norm": params["norm"] | {"shift": zero_like(shift)}}
    variants: dict[str, Any] = {
        "by hand": (lambda: anew(model), (params, ids)),
        "implicit": (lambda: jaxrewrite.transform(anew(model)), (values, ids)),
    }
    if peer is not None:
        variants["Quax"] = (
            lambda: peer.quaxify(anew(model)),
            (to_quax(peer, values), ids),
        )
    case = Case("peers", "transformer, one zero")
    yield from _timed(case, variants, False, options, progress)


def _operations(
    peer: Any, options: Options, progress: Callable[[str], None]
) -> Iterator[Measurement]:
    progress("one eager operation")
    x = jnp.ones((8, 16))
    zero = zero_like(x)
    add = jaxrewrite.transform(jnp.add)
    variants = {"by hand": lambda: jnp.add(x, x), "implicit": lambda: add(x, zero)}
    if peer is not None:
        quax_add, quax_zero = peer.quaxify(jnp.add), to_quax(peer, zero)
        variants["Quax"] = lambda: quax_add(x, quax_zero)
    samples = measure.interleaved(variants, options.repeats or options.of(2, 300, 2000))
    yield from Case("peers", "add a zero").timed("eager operation", samples)


def _sparse(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    """Ten steps of an iterative method on a sparse matrix."""
    size = options.of(16, 1000, 4000)
    dense = np.zeros((size, size), np.float32)
    at = np.random.default_rng(0).integers(0, size, (2, 5 * size))
    dense[tuple(at)] = 1 / size
    matrix = sparse.BCOO.fromdense(dense)
    value = Sparse(matrix.data, matrix.indices, matrix.shape)

    def model() -> Callable[..., Any]:
        def steps(m: Any, x: Any) -> Any:
            for _ in range(10):
                x = jnp.tanh(m @ x + 1)
            return x

        return steps

    x = jnp.ones(size)
    variants: dict[str, Any] = {
        "by hand": (model, (matrix, x)),
        "implicit": (lambda: jaxrewrite.transform(model()), (value, x)),
        "sparsify": (lambda: sparse.sparsify(model()), (matrix, x)),
    }
    yield from _timed(
        Case("peers", "sparse iteration", size), variants, True, options, progress
    )


def _laplacian(
    side: int, options: Options, progress: Callable[[str], None]
) -> Iterator[Measurement]:
    """The Laplacian of a square grid, in the sparse formats of SciPy, of JAX and of this library."""
    second = scipy.sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (side, side))
    identity = scipy.sparse.eye(side)
    grid = scipy.sparse.kron(second, identity) + scipy.sparse.kron(identity, second)
    rows = scipy.sparse.csr_matrix(grid, dtype=np.float32)
    held = (jnp.asarray(x) for x in (rows.data, rows.indices, rows.indptr))
    matrix = sparse.BCSR(tuple(held), shape=rows.shape, unique_indices=True)
    value, entries = jaxrewrite.values.Sparse(matrix), matrix.to_bcoo()
    right = np.random.default_rng(0).normal(size=side * side).astype(np.float32)
    b = jnp.asarray(right)
    steps: dict[str, Any] = {"maxiter": 50}
    multiply = jax.jit(lambda m, x: m @ x)
    implicit = jax.jit(jaxrewrite.transform(lambda v, x: v @ x))
    solve = jax.jit(lambda m, b: jax.scipy.sparse.linalg.cg(lambda x: m @ x, b, **steps)[0])
    solve_implicit = jax.jit(
        jaxrewrite.transform(
            lambda v, b: jax.scipy.sparse.linalg.cg(lambda x: v @ x, b, **steps)[0]
        )
    )
    programs: dict[str, dict[str, Callable[[], Any]]] = {
        "product": {
            "by hand": lambda: multiply(entries, b),
            "implicit": lambda: implicit(value, b),
            "SciPy": lambda: rows @ right,
        },
        "conjugate gradients": {
            "by hand": lambda: solve(entries, b),
            "implicit": lambda: solve_implicit(value, b),
            "SciPy": lambda: scipy.sparse.linalg.cg(rows, right, **steps)[0],
        },
    }
    for name, variants in programs.items():
        check_equal(name, {variant: run() for variant, run in variants.items()}, 1e-2)
        samples = measure.interleaved(variants, options.repeats or options.of(2, 20, 50))
        case = Case("peers", "Laplacian of a grid", side * side)
        yield from case.timed(name, samples)
        progress(f"Laplacian of {side} x {side}, {name}")


# --- the programs that run ---------------------------------------------------------


@jax.custom_jvp
def _softened(x: Any) -> Any:
    return jnp.tanh(x)


@_softened.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _softened(*primals), 0.5 * tangents[0]


@jax.custom_vjp
def _doubled(w: Any, x: Any) -> Any:
    return x @ w


_doubled.defvjp(
    lambda w, x: (x @ w, (w, x)), lambda s, ct: (2 * s[1].T @ ct, 2 * ct @ s[0].T)
)


def _stacked(t: Any, v: Any, x: Any) -> Any:
    pair = [v, jax.tree.map(lambda leaf: 0.5 * leaf, v)]
    if isinstance(v, jaxrewrite.Value):
        layers = jaxrewrite.stack(pair)
    else:
        layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair)
    run = t(lambda vs, x: lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, vs)[0])
    return run(layers, x)


def _jvp(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The tangent of ``fn(w, x)`` along ones in the weight's leaves."""

    def run(t: Any, v: Any, x: Any) -> Any:
        ones = jax.tree.map(jnp.ones_like, v)
        return jax.jvp(lambda v: t(fn)(v, x), (v,), (ones,))[1]

    return run


def _grad(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of the sum of ``fn(w, x)`` with respect to the leaves."""

    def run(t: Any, v: Any, x: Any) -> Any:
        return jax.tree.leaves(jax.grad(lambda v: t(fn)(v, x).sum())(v))

    return run


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda t, v, x: t(fn)(v, x)


def _sharded(w: Any, x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("i",))
    spec = jax.P()
    return jax.shard_map(
        lambda w, x: x @ w, mesh=mesh, in_specs=(spec, spec), out_specs=spec
    )(w, x)


# Each takes the transform, a weight of shape (3, 3) and an array.
PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "product": _plain(lambda w, x: x @ w),
    "jit inside": _plain(jax.jit(lambda w, x: jnp.tanh(x @ w))),
    "jit outside": lambda t, v, x: jax.jit(t(lambda w, x: x @ w))(v, x),
    "gradient": _grad(lambda w, x: jnp.tanh(x @ w)),
    "vmap inside": _plain(lambda w, x: jax.vmap(lambda x: x @ w)(x)),
    "scan, closed over": _plain(
        lambda w, x: lax.scan(lambda c, _: (c @ w, None), x, None, 3)[0]
    ),
    "scan, in the carry": _plain(
        lambda w, x: lax.scan(lambda c, _: ((c[0] @ c[1], c[1]), None), (x, w), None, 3)[0][
            0
        ]
    ),
    "scan, over a stack": _stacked,
    "while loop": _plain(lambda w, x: lax.fori_loop(0, 3, lambda i, c: c @ w, x)),
    "cond": _plain(lambda w, x: lax.cond(x.sum() > 0, lambda x: x @ w, lambda x: x - 1, x)),
    "cond, a value out": _plain(
        lambda w, x: x @ lax.cond(x.sum() > 0, lambda: w, lambda: w)
    ),
    "checkpoint, gradient": _grad(
        lambda w, x: jax.checkpoint(lambda x: jnp.tanh(x @ w))(x)
    ),
    "custom_jvp after": _jvp(lambda w, x: _softened(x @ w)),
    "custom_jvp on the weight": _jvp(lambda w, x: x @ _softened(w)),
    "custom_vjp on the weight": _grad(_doubled),
    "shard_map": _plain(_sharded),
    "linear solve": _plain(
        lambda w, x: lax.custom_linear_solve(
            lambda y: y + 0.1 * (y @ w), x, lambda mv, y: y / 1.1, symmetric=True
        )
    ),
}


def _programs(peer: Any, progress: Callable[[str], None]) -> Iterator[Measurement]:
    value = Lora(0.3 * jnp.eye(3), 0.2 * jnp.ones((3, 1)), 0.1 * jnp.ones((1, 3)))
    variants: dict[str, tuple[Any, Any]] = {"implicit": (_ours, value)}
    if peer is not None:
        variants["Quax"] = (peer.quaxify, to_quax(peer, value))
    for name, program in PROGRAMS.items():
        progress(f"which programs run: {name}")
        expected = program(_densely, value, jnp.ones((3, 3)))
        for variant, (transform, v) in variants.items():
            outcome = _outcome(program, transform, v, expected)
            yield Case("peers", "runs").missing(name, variant, outcome)


def _ours(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jaxrewrite.transform(fn, materialise="allow")


def _densely(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda v, x: fn(jaxrewrite.materialise(v), x)


def _outcome(program: Callable[..., Any], transform: Any, v: Any, expected: Any) -> str:
    """``implicit``, ``dense``, ``wrong``, or the name of the error."""
    made_dense = []
    cls, original = type(v), type(v).materialise

    def materialise(self: Any) -> Any:
        made_dense.append(1)
        return original(self)

    jaxrewrite.clear_caches()
    cls.materialise = materialise
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = program(transform, v, jnp.ones((3, 3)))
            pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
            right = all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)
    except Exception as error:  # noqa: BLE001 - a peer may fail in any way
        return type(error).__name__
    finally:
        cls.materialise = original
    if not right:
        return "wrong"
    return "dense" if made_dense else "implicit"


PART = Part("peers", "Peers", __doc__ or "", "by hand", run)
