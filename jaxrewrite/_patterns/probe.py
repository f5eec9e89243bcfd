"""The forms that the looked-for function of a pattern takes.

A function of rank, shape and dtype has different equations for different operands:
broadcasting, sums in a wider dtype, formulas for small matrices. So it is traced at a few
operands of the ranks, dtypes and sizes that the annotations allow. All sizes are equal in
one probe, because almost every function can be traced so. Most functions take few forms;
where a change of dtype or size shows no new one, no more of it is tried.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._annotations import Alternative, guards_hold
from .._compat import Primitive, ShapedArray
from .bodies import Hole, is_hole_scan
from .calls import Number
from .graph import Graph
from .pattern import Pattern, Traced, Variant


# The size of all axes in the first probes, and in the further ones: functions of linear
# algebra have formulas of their own for small matrices.
_SIZE = 5
_SIZES = (3, 2, 1)

# The highest rank that is probed.
_MAX_RANK = 6

# After so many ranks that show no new form, no more are tried.
_ENOUGH = 6


class Form(NamedTuple):
    """One form of a function, and the variants that take it."""

    graph: Graph
    variants: list[Variant]


class Forms:
    """The forms of a pattern that are known so far, in one trace context."""

    def __init__(self, pattern: Pattern):
        self.pattern = pattern
        self.by_form: dict[Any, Form] = {}
        self._kinds: set[Any] = set()
        self._rank = -1
        # The dtypes of operands of which the function has forms of its own, in order.
        self._forming: dict[tuple[Any, ...], None] = {}
        self._core: frozenset[Primitive] | None = None
        self._lock = threading.RLock()

    def core(self) -> frozenset[Primitive]:
        """Primitives that are in each form; `TypeError` if the function cannot be traced."""
        with self._lock:
            if self._core is None:
                self._core = self._find_core()
        return self._core

    def _find_core(self) -> frozenset[Primitive]:
        pattern = self.pattern
        errors: list[Exception] = []
        args, found = self._first_traces(errors)
        for changed in _changes(pattern, args):
            found += self._all(changed, errors)
        found += self._batched(args, errors)
        unused = set(range(len(pattern.names))) - set(pattern.bodies)
        for traced in found:
            unused -= {ref[1] for ref in traced.graph.refs() if ref[0] in _OPERANDS}
        if unused:
            names = ", ".join(repr(pattern.names[i]) for i in sorted(unused))
            raise TypeError(
                f"What a pattern looks for does not use its operand {names}, which could "
                "then be anything." + pattern.both()
            )
        return frozenset.intersection(*map(_primitives, found))

    def _first_traces(self, errors: list[Exception]) -> tuple[Sequence[Any], list[Traced]]:
        """The first operands at which the function can be traced, and the traces there."""
        for size in (_SIZE, *_SIZES):
            for args in _base_args(self.pattern, size, _FLOAT):
                found = self._all(args, errors)
                if found:
                    return args, found
        error = TypeError(
            "What a pattern looks for can't be traced at any operands that its "
            "annotations allow. Annotate the operands, or give probes=."
            + self.pattern.both()
        )
        raise error from (errors[0] if errors else None)

    def _all(
        self,
        args: Sequence[Any],
        errors: list[Exception],
        variant: Variant = None,
        choices: Iterable[dict[str, Any]] | None = None,
    ) -> list[Traced]:
        """The traces at some operands, one for each choice of the static parameters."""
        found = []
        if choices is None:
            choices = self.pattern.statics.some(_rank(args))
        for statics in choices:
            traced = traced_form(self.pattern, args, statics, variant)
            if isinstance(traced, Traced):
                self.pattern.check(traced, len(args))
                found.append(traced)
            else:
                errors.append(traced)
        return found

    def _batched(self, args: Sequence[Any], errors: list[Exception]) -> list[Traced]:
        """A batched trace for each set of primitives that the function has at operands.

        Batching makes other primitives of some: of an update of a slice, a scatter.
        """
        choices = {}
        for statics in self.pattern.statics.some(_rank(args)):
            traced = traced_form(self.pattern, args, statics, None)
            if isinstance(traced, Traced):
                choices[_primitives(traced)] = statics
        return [
            traced
            for variant in _variants(self.pattern)[:1]
            for traced in self._all(
                _with_batch(args, variant), errors, variant, choices.values()
            )
        ]

    def extend(self, dtypes: frozenset[Any], rank: int) -> None:
        """Probe for programs with these dtypes and ranks."""
        rank = min(rank, _MAX_RANK)
        with self._lock:
            if not dtypes <= self._kinds or rank > self._rank:
                self._kinds |= dtypes
                self._rank = max(rank, self._rank)
                self._probe(frozenset(self._kinds), self._rank)

    def forms(self) -> list[Form]:
        """The forms that are known by now."""
        with self._lock:
            return list(self.by_form.values())

    def _probe(self, dtypes: frozenset[Any], rank: int) -> None:
        pattern = self.pattern
        for probe in pattern.probes:
            self._try(probe)
        good: list[tuple[int, ...]] = []
        for base in _base_kinds(pattern, _base_dtype(dtypes)):
            good = self._good_ranks(rank, base)
            if good:
                break
        for size in _SIZES:
            self._adaptively(good, lambda r, s=size: _args(pattern, r, base, s))
        self._forming[base] = None
        for kinds in _dtype_changes(pattern, base, dtypes):
            if self._adaptively(good, lambda r, k=kinds: _args(pattern, r, k)):
                self._forming[kinds] = None
        for i in range(len(pattern.names)):
            weak = [r for r in good if r[i] == 0]
            self._adaptively(weak, lambda r, i=i: _args(pattern, r, base, weak=i))
        for variant in _variants(pattern):
            lower = [ranks for ranks in good if _batched_rank(ranks, variant) <= rank]
            for kinds in self._forming:
                self._adaptively(lower, lambda r, k=kinds: _args(pattern, r, k), variant)

    def _good_ranks(self, highest: int, kinds: Any) -> list[tuple[int, ...]]:
        """Ranks at which the function can be traced, until these show no new form."""
        good: list[tuple[int, ...]] = []
        since = 0
        for ranks in _ranks(self.pattern, highest):
            before = self.count()
            if self._try(_args(self.pattern, ranks, kinds)):
                good.append(ranks)
                since = since + 1 if self.count() == before else 0
            if since == _ENOUGH:
                break
        return good

    def _adaptively(self, ranks: Sequence[Any], args: Any, variant: Variant = None) -> bool:
        """Probe at some ranks, and at all of them if that shows a new form, which it tells."""
        some = ranks if len(ranks) <= 2 else [ranks[0], ranks[-1]]
        before = self.count()
        for r in some:
            self._try(args(r), variant)
        if self.count() == before:
            return False
        for r in ranks:
            self._try(args(r), variant)
        return True

    def count(self) -> int:
        """How many forms are known, counted for each variant."""
        return sum(len(form.variants) for form in self.forms())

    def _try(self, args: Sequence[Any] | None, variant: Variant = None) -> bool:
        if args is None:
            return False
        if variant is not None:
            args = _with_batch(args, variant)
        succeeded = False
        for statics in self.pattern.statics.some(_rank(args) - (variant is not None)):
            traced = traced_form(self.pattern, args, statics, variant)
            if isinstance(traced, Traced):
                self.pattern.check(traced, len(args))
                self._add(traced.graph, variant)
                succeeded = True
        return succeeded

    def _add(self, graph: Graph, variant: Variant) -> None:
        graph, _ = graph.core()
        form = self.by_form.setdefault(graph.form(), Form(graph, []))
        if variant not in form.variants:
            form.variants.append(variant)
            # What is not batched is tried first.
            form.variants.sort(key=lambda v: (v is not None, str(v)))


_OPERANDS = ("operand", "scalar")


def _primitives(traced: Traced) -> frozenset[Primitive]:
    return traced.graph.core()[0].primitives()


def traced_form(
    pattern: Pattern, args: Sequence[Any], statics: dict[str, Any], variant: Variant
) -> Traced | Exception:
    """A trace in which the numbers that stand for operands are marked.

    Raises `TypeError` if the function computes with such a number.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The operands are not the user's.
        traced = pattern.trace(args, statics, variant)
    if isinstance(traced, Exception):
        return traced
    if pattern.bodies and not any(is_hole_scan(n.eqn) for n in traced.graph.nodes):
        raise TypeError(
            f"What a pattern looks for does not use its operand "
            f"{pattern.names[pattern.bodies[0]]!r} as the body of a scan, and the whole of it."
            + pattern.both()
        )
    scalars = [(i, Number(np.asarray(args[i]))) for i in pattern.scalars]
    graph = traced.graph
    if scalars:
        graph = graph.with_scalars(scalars)
        marked = {ref[1] for ref in graph.refs() if ref[0] == "scalar"}
        for i, _ in scalars:
            if i not in marked:
                raise TypeError(
                    f"What a pattern looks for computes with its operand "
                    f"{pattern.names[i]!r}, a number that stands for one in the program, or "
                    "does not use it. The number itself has to be in the program."
                    + pattern.both()
                )
    return traced._replace(graph=graph)


# --- operands to probe with ------------------------------------------------------------


def _rank(args: Sequence[Any]) -> int:
    return max((len(a.shape) for a in args if isinstance(a, ShapedArray)), default=0)


def _batched_rank(ranks: Sequence[int], variant: Variant) -> int:
    axes = variant or (None,) * len(ranks)
    return max(r + (axis is not None) for r, axis in zip(ranks, axes, strict=True))


def _guards(pattern: Pattern, i: int) -> list[Alternative]:
    return list(pattern.signature.operands[i])


def _possible_ranks(pattern: Pattern, i: int, highest: int) -> list[int]:
    """The ranks that the annotation of an operand allows."""
    ranks: set[int] = set()
    for alternative in _guards(pattern, i):
        if alternative.guard is None:
            return list(range(highest + 1))
        tokens = alternative.guard.dim_str.split()
        fixed = sum(not _is_variadic(token) for token in tokens)
        if fixed == len(tokens):
            ranks.add(fixed)
        else:
            ranks.update(range(fixed, max(highest, fixed) + 1))
    return sorted(ranks)


def _is_variadic(token: str) -> bool:
    return "..." in token or "*" in token[:2]


def _ranks(pattern: Pattern, highest: int) -> list[tuple[int, ...]]:
    """Combinations of ranks, those that most programs have first; 0 for numbers."""
    possible = [
        [0]
        if i in (*pattern.scalars, *pattern.bodies)
        else _possible_ranks(pattern, i, highest)
        for i in range(len(pattern.names))
    ]
    free = [i for i in range(len(possible)) if len(possible[i]) > 1]
    total = 1
    for ranks in possible:
        total *= len(ranks)
    if total <= 64:
        found = list(itertools.product(*possible))
    else:
        # All equal, one other than the rest, and two of a kind apart from the rest.
        found = []
        for r in range(highest + 1):
            equal = [r if r in ranks else ranks[-1] for ranks in possible]
            found.append(tuple(equal))
            for i in free:
                for other in possible[i]:
                    found.append((*equal[:i], other, *equal[i + 1 :]))
    found = list(dict.fromkeys(tuple(f) for f in found))
    return sorted(found, key=lambda f: (max(f) - min(f) > 0, abs(max(f) - 2), f))


_ODD = {int: 1009, float: 0.7371, complex: 0.7371 + 0.1931j}


def _args(
    pattern: Pattern,
    ranks: Sequence[int],
    kinds: Any,
    size: int = _SIZE,
    weak: int | None = None,
) -> list[Any] | None:
    """Operands of these ranks; ``kinds`` is a dtype for each, or one for all."""
    args: list[Any] = []
    for i, rank in enumerate(ranks):
        if i in pattern.scalars:
            args.append(_ODD[pattern.scalars[i]] + i)
            continue
        if i in pattern.bodies:
            args.append(Hole())
            continue
        dtype = kinds[i] if isinstance(kinds, tuple) else kinds
        arg = _operand(_guards(pattern, i), rank, dtype, size)
        if arg is None:
            return None
        args.append(arg.update(weak_type=True) if i == weak else arg)
    return args


def _operand(
    alternatives: Iterable[Alternative], rank: int, dtype: Any, size: int
) -> ShapedArray | None:
    for alternative in alternatives:
        shape = _shape(alternative.guard, rank, size)
        for kind in dict.fromkeys((dtype, *_DTYPES)):
            if shape is None or not _exists(kind):
                continue
            aval = ShapedArray(shape, np.dtype(kind))
            if guards_hold([alternative.guard], [aval]):
                return aval
    return None


def _exists(dtype: Any) -> bool:
    return jax.dtypes.canonicalize_dtype(dtype) == dtype


_DTYPES = tuple(
    np.dtype(d)
    for d in (jnp.float32, jnp.int32, jnp.bool_, jnp.complex64, jnp.bfloat16, jnp.float16,
              jnp.uint32, jnp.int8, jnp.uint8, jnp.int16, jnp.uint16, jnp.float64, jnp.int64)
)  # fmt: skip


def _shape(guard: Any, rank: int, size: int) -> tuple[int, ...] | None:
    """The shape of this rank with equal sizes, as far as the guard does not fix them."""
    if guard is None:
        return (size,) * rank
    tokens = guard.dim_str.split()
    more = rank - sum(not _is_variadic(token) for token in tokens)
    shape: list[int] = []
    for token in tokens:
        if _is_variadic(token):
            shape += [size] * more
        else:
            shape.append(int(token) if token.isdigit() else size)
    return tuple(shape) if len(shape) == rank else None


def _base_dtype(dtypes: frozenset[Any]) -> Any:
    for dtype in _DTYPES:
        if dtype in dtypes:
            return dtype
    return np.dtype(jnp.float32)


_FLOAT = np.dtype(jnp.float32)

# Dtypes of which functions may have forms of their own.
_OF_ALL = tuple(
    np.dtype(d)
    for d in (jnp.float32, jnp.bool_, jnp.int32, jnp.uint32, jnp.bfloat16, jnp.complex64)
)

# The dtypes of masks and of indices, which many functions want for one of their operands.
_OF_ONE = (np.dtype(jnp.bool_), np.dtype(jnp.int32))


def _base_kinds(pattern: Pattern, dtype: Any) -> Iterator[tuple[Any, ...]]:
    """One dtype for all operands, then one operand a mask or an index."""
    count = len(pattern.names)
    for same in (dtype, *_OF_ONE):
        yield (same,) * count
    if count == 1:
        return
    for other in _OF_ONE:
        for i in range(count - 1, -1, -1):
            yield (*(dtype,) * i, other, *(dtype,) * (count - i - 1))


def _with_batch(args: Sequence[Any], variant: Variant) -> list[Any]:
    """The operands with another leading axis where the variant has one."""
    return [
        arg if axis is None else arg.update(shape=(_SIZE, *arg.shape))
        for arg, axis in zip(args, variant or (), strict=True)
    ]


def _changes(pattern: Pattern, args: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The operands with other dtypes, all and one of them, and other sizes and ranks."""
    kinds = tuple(arg.dtype if isinstance(arg, ShapedArray) else _FLOAT for arg in args)
    yield from (_of_dtypes(pattern, args, (kind,) * len(args)) for kind in _OF_ALL)
    for i in range(len(args)):
        for one in (_FLOAT, *_OF_ONE):
            yield _of_dtypes(pattern, args, (*kinds[:i], one, *kinds[i + 1 :]))
    ranks = tuple(len(getattr(arg, "shape", ())) for arg in args)
    possible = _ranks(pattern, 4)
    shapes = [(ranks, size) for size in _SIZES]
    for other, size in [*shapes, (min(possible), _SIZE), (max(possible), _SIZE)]:
        changed = _args(pattern, other, kinds, size)
        if changed is not None:
            yield changed


def _of_dtypes(
    pattern: Pattern, args: Sequence[Any], kinds: Sequence[Any]
) -> Sequence[Any]:
    """Operands of these dtypes, where annotations allow them."""
    changed = []
    for i, (arg, kind) in enumerate(zip(args, kinds, strict=True)):
        new = arg.update(dtype=kind) if isinstance(arg, ShapedArray) else arg
        is_allowed = new is arg or any(
            guards_hold([a.guard], [new]) for a in _guards(pattern, i)
        )
        changed.append(new if is_allowed else arg)
    return changed


def _base_args(pattern: Pattern, size: int, dtype: Any) -> Iterator[Sequence[Any]]:
    """Operands of several ranks, until the function can be traced."""
    yield from pattern.probes
    for kinds in _base_kinds(pattern, dtype):
        for ranks in _ranks(pattern, 4):
            args = _args(pattern, ranks, kinds, size)
            if args is not None:
                yield args


def _dtype_changes(
    pattern: Pattern, base: tuple[Any, ...], dtypes: frozenset[Any]
) -> Iterator[tuple[Any, ...]]:
    """All operands of another dtype, and one of another dtype than the rest."""
    count = len(base)
    known = sorted((d for d in dtypes if isinstance(d, np.dtype)), key=str)
    inexact = [d for d in known if jnp.issubdtype(d, jnp.inexact)] or known
    changes = [(dtype,) * count for dtype in known]
    for most in dict.fromkeys((base[0], *inexact)) if count > 1 else ():
        for i in range(count):
            changes += (
                (*(most,) * i, one, *(most,) * (count - i - 1))
                for one in known
                if one != most
            )
    yield from (kinds for kinds in dict.fromkeys(changes) if kinds != base)


def _variants(pattern: Pattern) -> list[Variant]:
    """All arrays batched, and all but some of them."""
    if pattern.bodies:
        return []
    arrays = [i for i in range(len(pattern.names)) if i not in pattern.scalars]
    sets = [tuple(arrays)]
    if len(arrays) <= 3:
        sets += [
            chosen
            for n in range(len(arrays) - 1, 0, -1)
            for chosen in itertools.combinations(arrays, n)
        ]
    else:
        sets += [tuple(j for j in arrays if j != i) for i in arrays]
    return [
        tuple(0 if i in chosen else None for i in range(len(pattern.names)))
        for chosen in sets
    ]
