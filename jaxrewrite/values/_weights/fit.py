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

from .._base.chosen import chosen_leaves, leaves_by_path
from .._base.progress import Progress, shown
from .._base.structured import is_value
from .._matrices.monomial import Diagonal
from .._matrices.product import Product
from .coded import is_floating, sizes_along
from .concatenated import Concatenated, in_whole_blocks
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
        if not np.isfinite(self.dense).all():
            raise ValueError(
                f"calibrate: the weight {path} has entries that are infinite or NaN."
            )

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
        return math.prod(self._summed())

    def fit(self, part: Part, method: str, options: Options) -> None:
        order, sizes = self._order()
        matrix = self.dense[self._at(part)].transpose(order).reshape(self.count(), -1)
        inputs = self.record.inputs.pop(part)
        if not np.isfinite(inputs.gram).all():
            raise ValueError(
                f"calibrate: the weight {self.record.path} met an array that is not finite, or whose "
                "squares are too large for float32."
            )
        fitted = METHODS[method](matrix, inputs, options)
        self._fits[part] = fitted
        dense = fitted.dense().reshape(sizes).transpose(np.argsort(order))
        self.dense[self._at(part)] = dense

    def sizes(self, block: int | None) -> tuple[int, ...]:
        """The sizes of blocks of so many entries along the axes that are summed, or of all."""
        return sizes_along(self._summed(), self.count() if block is None else block)

    def blocks(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many rows each block has, if blocks have these sizes."""
        lengths = (
            [min(size, n - start) for start in range(0, n, size)]
            for n, size in zip(self._summed(), sizes, strict=True)
        )
        return tuple(map(math.prod, itertools.product(*lengths)))

    def _summed(self) -> list[int]:
        return [self.dense.shape[i] for i in self.record.axes.summed]

    def quantised(
        self, bits: int, sizes: Sequence[int], activations: str | None
    ) -> Quantised | Concatenated | Product:
        """The value, of all parts, in blocks of these sizes. A part that met nothing is an error."""
        stack, _, summed = self.record.axes
        parts = list(itertools.product(*(range(self.dense.shape[i]) for i in stack)))
        missing = [part for part in parts if part not in self._fits]
        if missing:
            raise ValueError(
                f"calibrate: the weight {self.record.path} met no floating array at the index "
                f"{missing[0]} of its axes {stack}. Give more data, or leave it out by where."
            )
        fits = [self._fits[part] for part in parts]
        codes = jnp.asarray(self._array([fit.codes for fit in fits], [1 for _ in summed]))
        scale = jnp.asarray(self._array([fit.scale for fit in fits], sizes), self.dtype)
        of_axes = dict(zip(summed, sizes, strict=True))
        steps = [of_axes.get(i, 1) for i in range(codes.ndim)]

        def in_format(where: tuple[slice, ...]) -> Quantised:
            pairs = zip(where, steps, strict=True)
            of_blocks = tuple(slice(at.start // n, -(-at.stop // n)) for at, n in pairs)
            v = Quantised.from_integers(codes[where], scale[of_blocks], bits=bits)
            return Quantised(v.q, v.scale, None, activations)

        v = in_whole_blocks(codes.shape, steps, in_format)
        rows = [x.rows for x in fits if x.rows is not None]
        return self._with_rows(v, np.array(rows)) if rows else v

    def _array(self, matrices: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
        """One array of the matrices of all parts, in which a row stands for a block."""
        stack, kept, summed = self.record.axes
        lengths = [self.dense.shape[i] for i in stack]
        rows = [-(-n // size) for n, size in zip(self._summed(), sizes, strict=True)]
        columns = [self.dense.shape[i] for i in kept]
        whole = np.stack(matrices).reshape(*lengths, *rows, *columns)
        return whole.transpose(np.argsort([*stack, *summed, *kept]))

    def _with_rows(self, v: Any, rows: np.ndarray) -> Product:
        stack, _, (summed,) = self.record.axes
        lengths = [self.dense.shape[i] for i in stack]
        diagonal = Diagonal(jnp.asarray(1 / rows.reshape(*lengths, -1), self.dtype))
        return Product((diagonal, v) if summed == v.ndim - 2 else (v, diagonal))

    def check(self, method: str) -> None:
        """Raise `ValueError` if the method does not fit the weight."""
        stack, kept, summed = self.record.axes
        is_matrix = len(summed) == len(kept) == 1 and stack == tuple(range(len(stack)))
        if method != "gptq" and not is_matrix:
            raise ValueError(
                f"calibrate: the weight {self.record.path}, of shape {self.dense.shape}, is no "
                f"matrix, or stack of matrices, in its products, as {method} needs it: they sum "
                f"the axes {summed} and keep {kept}."
            )


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
    may_choose = lambda leaf: not is_value(leaf) and is_floating(leaf)
    positions = chosen_leaves("calibrate", where, paths, leaves, may_choose)
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
    for weight in weights.values():
        weight.check(method)
    sizes = {i: weight.sizes(block) for i, weight in weights.items()}
    options = {
        i: Options(2 ** (bits - 1) - 1, weight.blocks(sizes[i]), ranges, dtype=weight.dtype)
        for i, weight in weights.items()
    }
    rounds = _rounds(weights, order)
    names = [", ".join(paths[i] for i in of) for of in rounds]
    for turns, _ in zip(rounds, shown(names, progress), strict=True):
        run_all(turns)
        for i, parts in turns.items():
            for part in parts:
                weights[i].fit(part, method, options[i])
    activations = "dynamic" if method == "smoothquant" else None
    for i, weight in weights.items():
        leaves[i] = weight.quantised(bits, sizes[i], activations)
    return tree_unflatten(treedef, leaves)


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
