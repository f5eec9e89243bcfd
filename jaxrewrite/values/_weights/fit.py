"""The weights of a program, quantised one after the other, fitted to data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_unflatten

import jaxrewrite

from .._base.chosen import chosen_leaves, leaves_by_path
from .._base.progress import Progress, shown
from .._matrices.monomial import Diagonal
from .._matrices.product import Product
from .fitted import METHODS, Fitted, Options
from .gathered import Gatherer, Met, Watched
from .quantised import Quantised, check_bits


Part = tuple[int, ...]


class Weight:
    """A weight that is quantised part by part, one for each index of a stack."""

    def __init__(self, path: str, w: Any, order: list[Met]) -> None:
        self.record = Gatherer(path, w.shape, order)
        self.dtype = w.dtype
        self.dense = np.array(w, np.float32)
        self._fits: dict[Part, Fitted] = {}

    def watched(self, turns: Sequence[Part] | None) -> Watched:
        """The weight as it is now, which gathers for some parts if it is their turn."""
        w = jnp.asarray(self.dense, self.dtype)
        if turns is None:
            return Watched.of(w, self.record)
        stack = self.record.axes.stack
        turn = np.zeros([n if i in stack else 1 for i, n in enumerate(w.shape)], bool)
        for part in turns:
            turn[self._at(part)] = True
        return Watched.of(w, self.record, turn)

    def _at(self, part: Part) -> Any:
        where: list[Any] = [slice(None)] * self.dense.ndim
        for axis, index in zip(self.record.axes.stack, part, strict=True):
            where[axis] = index
        return tuple(where)

    def _order(self) -> tuple[list[int], list[int]]:
        """The axes of a part with those that are summed first, and their lengths."""
        stack, kept, summed = self.record.axes
        left = [i for i in range(self.dense.ndim) if i not in stack]
        order = [left.index(i) for i in (*summed, *kept)]
        return order, [self.dense.shape[i] for i in (*summed, *kept)]

    def count(self) -> int:
        """How many entries are summed."""
        return math.prod(self.dense.shape[i] for i in self.record.axes.summed)

    def fit(self, part: Part, method: str, options: Options) -> None:
        order, sizes = self._order()
        matrix = self.dense[self._at(part)].transpose(order).reshape(self.count(), -1)
        fitted = METHODS[method](matrix, self.record.inputs.pop(part), options)
        self._fits[part] = fitted
        dense = fitted.dense().reshape(sizes).transpose(np.argsort(order))
        self.dense[self._at(part)] = dense

    def quantised(self, bits: int, block: int, activations: str | None) -> Any:
        """The value, of all parts. A part that met nothing is an error."""
        stack = self.record.axes.stack
        parts = list(itertools.product(*(range(self.dense.shape[i]) for i in stack)))
        missing = [part for part in parts if part not in self._fits]
        if missing:
            raise ValueError(
                f"calibrate: the weight {self.record.path} met no floating array at the index "
                f"{missing[0]} of its axes {stack}. Give more data, or leave it out by where."
            )
        fits = [self._fits[part] for part in parts]
        codes = jnp.asarray(self._array([fit.codes for fit in fits], 1))
        scale = jnp.asarray(self._array([fit.scale for fit in fits], block), self.dtype)
        v: Any = Quantised.from_integers(codes, scale, bits=bits)
        v = Quantised(v.q, v.scale, None, activations)
        rows = [x.rows for x in fits if x.rows is not None]
        return self._with_rows(v, np.array(rows)) if rows else v

    def _array(self, matrices: Sequence[np.ndarray], block: int) -> np.ndarray:
        """One array of the matrices of all parts, in which a row stands for a block."""
        stack, kept, summed = self.record.axes
        lengths = [self.dense.shape[i] for i in stack]
        rows = blocks_of([self.dense.shape[i] for i in summed], block)
        columns = [self.dense.shape[i] for i in kept]
        whole = np.stack(matrices).reshape(*lengths, *rows, *columns)
        return whole.transpose(np.argsort([*stack, *summed, *kept]))

    def _with_rows(self, v: Quantised, rows: np.ndarray) -> Product:
        stack, _, (summed,) = self.record.axes
        lengths = [self.dense.shape[i] for i in stack]
        diagonal = Diagonal(jnp.asarray(1 / rows.reshape(*lengths, -1), self.dtype))
        return Product((diagonal, v) if summed == v.ndim - 2 else (v, diagonal))

    def check(self, method: str, block: int) -> None:
        """Raise `ValueError` if the method or the blocks do not fit the weight."""
        stack, kept, summed = self.record.axes
        name = f"calibrate: the weight {self.record.path}, of shape {self.dense.shape},"
        sizes = [self.dense.shape[i] for i in summed]
        if math.prod(blocks_of(sizes, block)) * block != math.prod(sizes):
            raise ValueError(
                f"{name} is summed along axes of lengths {sizes}, which do not consist of whole "
                f"blocks of {block}."
            )
        is_matrix = len(summed) == len(kept) == 1 and stack == tuple(range(len(stack)))
        if method != "gptq" and not is_matrix:
            raise ValueError(
                f"{name} is no matrix, or stack of matrices, in its products, as {method} needs it: "
                f"they sum the axes {summed} and keep {kept}."
            )


def blocks_of(sizes: Sequence[int], block: int) -> list[int]:
    """How many blocks there are along each axis, if runs of ``block`` entries are blocks."""
    counts = []
    for n in reversed(sizes):
        common = math.gcd(block, n)
        counts.append(n // common)
        block = block // common if common == n else 1
    return counts[::-1]


def fitted_to(
    run: Callable[..., Any],
    values: Any,
    batches: Iterable[Any],
    method: str,
    where: Callable[[str, Any], bool],
    bits: int,
    block: int | None,
    ranges: Any,
    progress: Progress | None,
) -> Any:
    """The values with chosen weights quantised, each after those that the program meets before."""
    check_bits("calibrate", bits)
    paths, leaves, treedef = leaves_by_path(values)
    positions = chosen_leaves("calibrate", where, paths, leaves, _is_floating)
    order: list[Met] = []
    weights = {i: Weight(paths[i], leaves[i], order) for i in positions}
    data = list(batches)
    if not data:
        raise ValueError("calibrate: there are no batches to fit weights to.")

    def run_all(turns: dict[int, list[Part]] | None) -> None:
        for i, weight in weights.items():
            leaves[i] = weight.watched(None if turns is None else turns.get(i, []))
        for batch in data:
            run(tree_unflatten(treedef, leaves), batch)
        jax.effects_barrier()

    run_all(None)
    options = {
        i: Options(2 ** (bits - 1) - 1, block or w.count(), ranges)
        for i, w in weights.items()
    }
    for i, weight in weights.items():
        weight.check(method, options[i].block)
    rounds = _rounds(weights, order)
    names = [", ".join(paths[i] for i in of) for of in rounds]
    for turns, _ in zip(rounds, shown(names, progress), strict=True):
        run_all(turns)
        for i, parts in turns.items():
            for part in parts:
                weights[i].fit(part, method, options[i])
    activations = "dynamic" if method == "smoothquant" else None
    for i, weight in weights.items():
        leaves[i] = weight.quantised(bits, options[i].block, activations)
    return tree_unflatten(treedef, leaves)


def _is_floating(leaf: Any) -> bool:
    dtype = None if isinstance(leaf, jaxrewrite.Value) else getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def _rounds(
    weights: dict[int, Weight], order: Sequence[Met]
) -> list[dict[int, list[Part]]]:
    """The parts of weights to quantise together, in the order in which the program meets them.

    Products of the same array are together, such as those with the kernels of queries, keys and
    values. So are those of a batch.
    """
    position = {weight.record: i for i, weight in weights.items()}
    done: set[tuple[int, Part]] = set()
    rounds: list[dict[int, list[Part]]] = []
    last: Any = None
    for record, indices, numbers in order:
        i, stack = position[record], record.axes.stack
        parts = dict.fromkeys(tuple(index[axis] for axis in stack) for index in indices)
        new = [part for part in parts if (i, part) not in done]
        if not new:
            continue
        done.update((i, part) for part in new)
        if numbers != last:
            rounds.append({})
        rounds[-1].setdefault(i, []).extend(new)
        last = numbers
    return rounds
