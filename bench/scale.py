"""Llama-shaped models on meshes of simulated devices, compiled and not run.

One training step and one decoding step, as each device gets them. *Dense* trains all weights in
bfloat16 with AdamW. *Implicit* is the same model on weights of four bits with adapters of rank 16
(QLoRA), of which AdamW trains the adapters. No array is allocated. Memory is that of one device, and
what collectives receive is that of one device and step, also in loops. Both are from XLA's program for
a CPU, which computes bfloat16 in float32: there a dense weight is cast before it is gathered. FLOPs are
as XLA counts them, the body of each loop once. Traces of the implicit program have adapters in them,
which the dense one has not. *Dense weights sent* counts floats in the shape of a weight.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import jaxrewrite
from jaxrewrite import values

from . import llama, measure
from .collectives import Collective, collectives
from .suite import Case, Measurement, Options, Part, Target, rows_of
from .table import with_prefix


RANK, BLOCK = 16, 32
SENT = "dense weights sent"

# The devices, how they are arranged along data and model, and the sizes that are compiled there.
MESHES = {
    1: {"one device": (1, 1)},
    8: {"FSDP": (8, 1), "tensor parallel": (1, 8)},
    64: {"FSDP": (64, 1), "both": (8, 8)},
    256: {"FSDP": (256, 1), "both": (32, 8)},
}
SIZES = {1: ("1B", "8B"), 8: ("1B", "8B", "70B"), 64: ("8B", "70B"), 256: ("70B",)}


def run(options: Options, progress: Callable[[str], None]) -> Iterator[Measurement]:
    if options.effort == "quick":
        plan: dict[int, tuple[str, ...]] = {8: ("tiny",)}
    else:
        plan = options.of(None, {8: ("8B",), 64: ("8B",)}, SIZES)
    for devices, sizes in plan.items():
        for size in sizes:
            progress(f"{size} on {devices} devices")
            yield from in_a_process(devices, size)


def in_a_process(devices: int, size: str) -> list[Measurement]:
    """The measurements on so many devices, which JAX simulates from its start on."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "bench.scale", size]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return [Measurement(*row) for row in json.loads(done.stdout)]


def main(size: str) -> None:
    rows = []
    for name, shape in MESHES[jax.device_count()].items():
        mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        for program in ("training", "decoding"):
            where = name if mesh.size == 1 else f"{mesh.size} devices, {name}"
            case = Case("scale", f"{size} on {where}, {program}")
            rows += list(_compare(case, llama.SIZES[size], mesh, program))
    print(json.dumps(rows))


# --- the programs -------------------------------------------------------------------------


def quantised(config: llama.Config, key: Any) -> Any:
    """The model in four bits, with adapters of its kernels."""
    params = llama.init(config, key)

    def in_four_bits(w: Any) -> Any:
        return values.Quantised.quantise(w, 4, block=(BLOCK, 1))

    def adapted(w: Any) -> Any:
        (n, m), dtype = w.shape, w.dtype
        return values.Lora(
            in_four_bits(w), jnp.ones((n, RANK), dtype), jnp.zeros((RANK, m), dtype)
        )

    for name in config.kernels():
        params["layers"][name] = jax.vmap(adapted)(params["layers"][name])
    return {**params, **{name: in_four_bits(params[name]) for name in ("embed", "head")}}


class Program(NamedTuple):
    """``make`` gives a program that JAX has not seen; then its arguments' shapes and places.

    The arguments at ``changed`` are given away for results of their shapes.
    """

    make: Callable[[], Callable[..., Any]]
    shapes: tuple[Any, ...]
    places: tuple[Any, ...]
    changed: tuple[int, ...]

    def trace(self) -> Any:
        jitted = jax.jit(self.make(), in_shardings=self.places, donate_argnums=self.changed)
        return jitted.trace(*self.shapes)


def training(config: llama.Config, mesh: jax.sharding.Mesh, is_dense: bool) -> Program:
    layout = llama.Layout(mesh)
    params, shardings = _params(config, mesh, is_dense)
    chosen: Any = True
    if not is_dense:
        chosen = values.freeze(params, {values.Lora: ["w"]}, rest="freeze")
    trained, rest = (params, None) if is_dense else values.partition(params, chosen)
    where, where_rest = (
        (shardings, None) if is_dense else values.partition(shardings, chosen)
    )
    optimiser = optax.adamw(1e-4)
    moments = jax.eval_shape(optimiser.init, trained)
    whole = NamedSharding(mesh, P())
    where_moments = optax.tree_map_params(
        optimiser, lambda _, s: s, moments, where, transform_non_params=lambda _: whole
    )
    tokens = jax.ShapeDtypeStruct((mesh.shape["data"], config.length + 1), "int32")

    def make() -> Callable[..., Any]:
        model = functools.partial(llama.apply, config, layout)
        run = model if is_dense else jaxrewrite.transform(model, materialise="forbid")

        def loss(trained: Any, rest: Any, tokens: Any) -> Any:
            params = trained if is_dense else values.combine(trained, rest)
            logits = run(params, tokens[:, :-1]).astype("float32")
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return losses.mean()

        def step(trained: Any, moments: Any, rest: Any, tokens: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(trained, rest, tokens)
            change, moments = optimiser.update(gradient, moments, trained)
            return optax.apply_updates(trained, change), moments, value

        return step

    shapes = trained, moments, rest, tokens
    places = where, where_moments, where_rest, NamedSharding(mesh, P("data"))
    return Program(make, shapes, places, (0, 1))


def decoding(config: llama.Config, mesh: jax.sharding.Mesh, is_dense: bool) -> Program:
    layout = llama.Layout(mesh)
    params, where = _params(config, mesh, is_dense)
    batch = 8 * mesh.shape["data"]
    cache = jax.eval_shape(lambda: llama.cache(config, batch))
    token = jax.ShapeDtypeStruct((batch, 1), "int32")
    position = jax.ShapeDtypeStruct((), "int32")

    def make() -> Callable[..., Any]:
        step = functools.partial(llama.decode, config, layout)
        return step if is_dense else jaxrewrite.transform(step, materialise="forbid")

    at = functools.partial(NamedSharding, mesh)
    places = where, {name: at(llama.CACHE) for name in cache}, at(P("data")), at(P())
    return Program(make, (params, cache, token, position), places, (1,))


def _params(
    config: llama.Config, mesh: jax.sharding.Mesh, is_dense: bool
) -> tuple[Any, Any]:
    """The shapes of the parameters, and where they are."""
    init = llama.init if is_dense else quantised
    shapes = jax.eval_shape(functools.partial(init, config), jax.random.key(0))
    return shapes, jaxrewrite.shardings(shapes, mesh, llama.RULES)


# --- what is measured ---------------------------------------------------------------------


def _compare(
    case: Case, config: llama.Config, mesh: jax.sharding.Mesh, name: str
) -> Iterator[Measurement]:
    make = training if name == "training" else decoding
    programs = {
        "dense": make(config, mesh, True),
        "implicit": make(config, mesh, False),
    }
    traces = {variant: program.trace for variant, program in programs.items()}
    yield from case.timed("trace", measure.interleaved(traces, 3))
    found: dict[str, dict[str, float]] = {}
    units: dict[str, str] = {}
    for variant, program in programs.items():
        for quantity, unit, number in _facts(config, mesh, name, program):
            found.setdefault(quantity, {})[variant] = number
            units[quantity] = unit
    for quantity, numbers in found.items():
        both = {variant: numbers.get(variant, 0.0) for variant in programs}
        yield from case.exact(quantity, both, units[quantity])


def _facts(
    config: llama.Config,
    mesh: jax.sharding.Mesh,
    name: str,
    program: Program,
) -> Iterator[tuple[str, str, float]]:
    """What each device has, computes, and receives."""
    compiled = program.trace().lower().compile()
    kept = [_nbytes(*pair) for pair in zip(program.shapes, program.places, strict=True)]
    if name == "training":
        yield "parameters", "B", kept[0] + kept[2]
        yield "optimiser state", "B", kept[1]
    else:
        yield "parameters", "B", kept[0]
        yield "cache", "B", kept[1]
    said = measure.said_by_xla(compiled)
    yield "temporaries", "B", said["temporaries"]
    yield "memory", "B", sum(kept) + said["temporaries"]
    yield "FLOPs", "", said["FLOPs"]
    sent = collectives(compiled.as_text())
    yield (
        "dense weights sent",
        "",
        sum(count for x, count in sent.items() if _is_dense_weight(config, mesh, x)),
    )
    kinds = sorted({(x.name, x.dtype) for x in sent})
    for kind in kinds:
        of_kind = {x: n for x, n in sent.items() if (x.name, x.dtype) == kind}
        yield f"{' '.join(kind)}, times", "", sum(of_kind.values())
        yield f"{' '.join(kind)}, bytes", "B", sum(x.nbytes * n for x, n in of_kind.items())


def _nbytes(shapes: Any, places: Any) -> float:
    """The bytes of a device's shards. Two entries of four bits are in one byte."""
    leaves, where = map(jax.tree.leaves, (shapes, places))
    return sum(
        math.prod(sharding.shard_shape(x.shape)) * jnp.dtype(x.dtype).itemsize
        for x, sharding in zip(leaves, where, strict=True)
    )


def _is_dense_weight(
    config: llama.Config, mesh: jax.sharding.Mesh, collective: Collective
) -> bool:
    """Whether it is floats of the shape of a weight, or of what tensor parallelism leaves of it."""
    if not collective.dtype.startswith(("f", "bf")):
        return False
    parts = mesh.shape["model"]
    tables = (config.vocabulary, config.width), (config.width, config.vocabulary)
    for n, m in (*config.kernels().values(), *tables):
        if collective.shape[-2:] in ((n, m), (n // parts, m), (n, m // parts)):
            return True
    return False


def headline(results: Sequence[Measurement]) -> list[str]:
    """Of the largest model on each mesh, what a device holds and receives to train it."""
    rows = rows_of(results)
    steps = {
        case.partition(" on ")[2]: case
        for case, _, quantity in rows
        if quantity == "memory" and case.endswith("training")
    }
    lines = []
    for case in steps.values():
        received = {
            variant: sum(
                numbers[variant].value or 0.0
                for (other, _, quantity), numbers in rows.items()
                if other == case and quantity.endswith(", bytes")
            )
            for variant in ("implicit", "dense")
        }
        memory = {v: rows[case, None, "memory"][v].value or 0.0 for v in received}
        holds, receives = (
            " in place of ".join(with_prefix(x, "B") for x in numbers.values())
            for numbers in (memory, received)
        )
        lines.append(f"{case}: a device holds {holds}, and receives {receives} in a step")
    sent = [row["implicit"].value for (_, _, q), row in rows.items() if q == SENT]
    return [
        *lines,
        f"Of {len(sent)} implicit programs {sum(map(bool, sent))} send a dense weight",
    ]


PART = Part(
    "scale",
    "Models of 1 to 70 billion parameters, on paper",
    __doc__ or "",
    "dense",
    run,
    {"temporaries": Target(1.0), "trace": Target(1.1)},
    drawn=("memory",),
    headline=headline,
)


if __name__ == "__main__":
    main(sys.argv[1])
