"""A model of the time that equations take, from their shapes alone.

An equation takes the longer of its arithmetic and its traffic, the roofline of Williams, Waterman
and Patterson [1]_, and the time to start it:

    seconds = start + max(FLOPs / rate, bytes / bandwidth)

FLOPs and bytes are those of `_insight.costs`. The rate is that of products, and a table says how
many times slower the other families are: a factorisation by LAPACK, a Fourier transform, a
scatter. Equations that act entry by entry are compiled into their neighbours. So what they hand
on to each other is not counted as traffic, nor what two of them read, and they are started together. Arrays that fit a
core's own cache are faster to read and write. One that fits no cache is written to fresh pages of
memory, which takes much longer than to write to old ones.

The constants are measured on a CPU with two cores. The choices depend on their ratios alone: six
operations of a product in the time that one byte takes, from memory; two from a cache.

.. [1] S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model
   for multicore architectures", *Commun. ACM* 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from typing import Any

import jax.extend.core as jex_core

from .._compat import JaxprEqn, Literal
from .._insight import costs


RATE = 120e9  # Operations of a large product, each second.
BANDWIDTH = 20e9  # Bytes each second, read or written.
START = 2e-6  # Seconds until a kernel runs.

# Arrays of at most so many bytes stay in a cache, which is so many times faster.
CACHED, CACHED_SPEEDUP = 1e6, 2.5

# The pages of arrays of so many bytes are new at each call, and so many times slower to write.
FRESH, FRESH_SLOWDOWN = 32e6, 12.0

# The start of a turn of a loop and of each kernel in it, and the turns of a loop of unknown length.
TURN, TURNS = 0.05e-6, 10


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _by_name(table: dict[str, float]) -> dict[str, float]:
    return {name: number for names, number in table.items() for name in names.split()}


# How many times longer an operation takes than one of a product.
_SLOWER = _by_name(
    {
        "cholesky": 8.0,
        "triangular_solve": 12.0,
        "lu geqrf geqp3 householder_product qr": 15.0,
        "eigh eig schur hessenberg svd tridiagonal": 15.0,
        "fft": 20.0,
        "sort top_k": 1500.0,
        "cumsum cumprod cummax cummin cumlogsumexp": 1500.0,
        "tridiagonal_solve": 400.0,
        "bcoo_dot_general bcsr_dot_general": 60.0,
        "integer_dot": 0.25,
        "rows_dot": 6.0,
        "exp exp2 log log1p expm1 tanh sin cos tan logistic erf pow cbrt": 40.0,
    }
)
_ENTRYWISE = (
    6.0  # The same for equations that act entry by entry, and are not in the table.
)

# Seconds for each entry, and for each slice, that a gather reads or a scatter writes.
_ENTRY, _SLICE = 0.8e-9, 1e-9
_GATHERS = frozenset({"gather"})
_SCATTERS = _names("scatter scatter-add scatter-mul scatter-min scatter-max scatter-sub")

# They read no more of their operands than they write.
_SLICES = _GATHERS | {"slice", "dynamic_slice"}

# They are other names for their operands.
_ALIASES = _names("reshape squeeze copy_p stop_gradient")

# What a compiler does not fuse into its neighbours, beside equations with such ones inside.
_ALONE = _names(
    "dot_general ragged_dot_general conv_general_dilated integer_dot rows_dot fft sort top_k "
    "bcoo_dot_general bcsr_dot_general cholesky triangular_solve lu geqrf geqp3 "
    "householder_product qr eigh eig schur hessenberg svd tridiagonal tridiagonal_solve "
    "cumsum cumprod cummax cummin cumlogsumexp optimization_barrier while scan cond "
    "custom_linear_solve pure_callback io_callback ffi_call"
)
_ALONE |= _SCATTERS


def seconds(
    eqns: Sequence[JaxprEqn], results: Container[Any], start: float = START
) -> float:
    """The seconds of some equations, of which others need the results."""
    aliases: dict[Any, Any] = {}
    pairs = []
    for eqn in eqns:
        if eqn.primitive.name in _ALIASES and type(eqn.invars[0]) is not Literal:
            operand = eqn.invars[0]
            aliases[eqn.outvars[0]] = aliases.get(operand, operand)
        else:
            pairs.append((eqn, _is_fused(eqn)))

    def arrays(atoms: Iterable[Any]) -> list[Any]:
        return list(dict.fromkeys(aliases.get(x, x) for x in _arrays(atoms)))

    fused = {var for eqn, is_fused in pairs if is_fused for var in eqn.outvars}
    kept = {x for eqn, is_fused in pairs if not is_fused for x in arrays(eqn.invars)}
    kept.update(aliases.get(x, x) for e in eqns for x in e.outvars if x in results)
    each = []
    for eqn, is_fused in pairs:
        if not is_fused and (bodies := costs.bodies_that_run(eqn)):
            each.append(_of_bodies(eqn, bodies, start))
        elif not is_fused:
            each.append(start + _roofline(eqn, arrays(eqn.invars), eqn.outvars))
        else:
            read = [x for x in arrays(eqn.invars) if x not in fused]
            if eqn.primitive.name not in _SLICES:
                fused.update(read)  # What is fused with it reads them at once.
            written = [x for x in eqn.outvars if x in kept]
            each.append((start if written else 0.0) + _roofline(eqn, read, written))
    return math.fsum(each)


def seconds_of_jaxpr(jaxpr: Any, start: float = START) -> float:
    return seconds(jaxpr.eqns, {*_arrays(jaxpr.outvars)}, start)


def _is_fused(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name in _ALONE:
        return False
    bodies = jex_core.jaxprs_in_params(eqn.params)
    return all(_is_fused(inner) for body in bodies for inner in body.eqns)


def _arrays(atoms: Iterable[Any]) -> list[Any]:
    """The variables among some atoms, each once."""
    return list(dict.fromkeys(x for x in atoms if type(x) is not Literal))


def _roofline(eqn: JaxprEqn, read: Iterable[Any], written: Iterable[Any]) -> float:
    name = eqn.primitive.name
    if name in _GATHERS:
        return _of_slices(eqn.outvars[0], eqn.invars[1])
    if name in _SCATTERS:
        return _traffic(read, written) + _of_slices(eqn.invars[2], eqn.invars[1])
    if name in _SLICES:
        read = eqn.outvars if read else ()
    slower = _SLOWER.get(name, 1.0 if name in _ALONE else _ENTRYWISE)
    return max(costs.of_equation(eqn).flops * slower / RATE, _traffic(read, written))


def _traffic(read: Iterable[Any], written: Iterable[Any]) -> float:
    sizes = [costs.bytes_of(x.aval) for x in read]
    for x in written:
        size = costs.bytes_of(x.aval)
        sizes.append(size * (FRESH_SLOWDOWN if size >= FRESH else 1.0))
    return sum(
        size / BANDWIDTH / (CACHED_SPEEDUP if size <= CACHED else 1.0) for size in sizes
    )


def _of_slices(entries: Any, indices: Any) -> float:
    slices = math.prod(indices.aval.shape[:-1])
    return math.prod(entries.aval.shape) * _ENTRY + slices * _SLICE


def _of_bodies(eqn: JaxprEqn, bodies: Sequence[Any], start: float) -> float:
    name = eqn.primitive.name
    if name in ("scan", "while"):
        turns = eqn.params["length"] if name == "scan" else TURNS
        return turns * (TURN + sum(seconds_of_jaxpr(body, TURN) for body in bodies))
    each = [seconds_of_jaxpr(body, start) for body in bodies]
    return max(each) if name == "cond" else sum(each)
