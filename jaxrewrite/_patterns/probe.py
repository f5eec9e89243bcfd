"""The forms that the looked-for function of a pattern takes.

A function of rank, shape and dtype has different equations for different operands:
broadcasting, sums in a wider dtype, formulas for small matrices. So it is traced at a few
operands of the ranks, dtypes and sizes that the annotations allow. All sizes are equal in
one probe, because almost every function can be traced so. Most functions take one form.
So probes change one property of the operands at a time, with one choice of the static parameters
for each known form. A change that shows another form is tried with all choices.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._analyses.calls import Number
from .._analyses.graph import Graph
from .._analyses.traits import BATCHED_LIKEWISE
from .._compat import Primitive, ShapedArray
from .._core.annotations import Alternative, guards_hold
from .bodies import Hole, is_hole_scan
from .domains import Choice
from .pattern import Pattern, Traced, Variant, count_of_batches


# The size of all axes in the first probes, and in further probes: functions of linear
# algebra have formulas of their own for small matrices.
_SIZE = 5
_SIZES = (3, 2, 1)

# The highest rank that is probed.
_MAX_RANK = 6

# After so many ranks that show no new form, no more are tried.
_ENOUGH = 6

# Of the lowest and of the highest ranks, so many are tried until one can be traced.
_FEW = 3


@dataclasses.dataclass(eq=False)
class Form:
    """One form of a function, and the variants and choices of static parameters with it."""

    graph: Graph
    variants: list[Variant] = dataclasses.field(default_factory=list)
    choices: set[Choice] = dataclasses.field(default_factory=set)
    _entries: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def primitives(self) -> frozenset[Primitive]:
        return self.graph.primitives()

    def entry(self, depth: int, count: int, make: Callable[[], Any]) -> Any:
        """The entry of indices for this form; ``count`` grows with the known forms."""
        key = depth, count
        if key not in self._entries:
            self._entries = {key: make()}
        return self._entries[key]


class _Base(NamedTuple):
    """The first operands at which a function was traced."""

    args: Sequence[Any]
    ranks: tuple[int, ...]
    kinds: tuple[Any, ...]


class Forms:
    """The forms of a pattern that are known so far, in one trace context."""

    def __init__(self, pattern: Pattern):
        self.pattern = pattern
        self.by_form: dict[Any, Form] = {}
        self._base: _Base | None = None
        self._needs: list[frozenset[frozenset[str]]] = []
        self._kinds: frozenset[Any] = frozenset()
        self._rank = -1
        # The operands and static parameters that showed a form first.
        self._showing: list[tuple[Sequence[Any], dict[str, Any]]] = []
        self._tried: dict[Any, bool] = {}
        # Batched functions that are not tried yet, and the primitives of each variant.
        self._waiting: list[tuple[Sequence[Any], dict[str, Any], Variant]] = []
        self._of_variant: dict[Variant, frozenset[Primitive]] = {}
        self._operands = range(len(pattern.names))
        self._variants = _variants(pattern)
        self._several = _several(pattern)
        self._used: set[int] = set()
        self._is_beginning = False
        # Whether the pattern was in force where its function was traced.
        self._meets_itself = False
        self._lock = threading.RLock()

    def may_be_among(self, names: Set[str]) -> bool:
        """Whether a program of primitives of these names may contain the function.

        Raises `TypeError` if the function cannot be traced.
        """
        with self._lock:
            self._begin()
            return any(
                all(map(names.__and__, alternatives)) for alternatives in self._needs
            )

    def core(self) -> frozenset[Primitive]:
        """The primitives of the function; `TypeError` if it cannot be traced."""
        with self._lock:
            self._begin()
            return frozenset.intersection(*(f.graph.primitives() for f in self.forms()))

    def extend(
        self, dtypes: frozenset[Any], rank: int, primitives: Set[Primitive] | None = None
    ) -> None:
        """Probe for programs with these dtypes, ranks and primitives, or with any."""
        rank = min(rank, _MAX_RANK)
        with self._lock:
            if dtypes <= self._kinds and rank <= self._rank:
                self._try_waiting(primitives)
                return
            base = self._begin()
            shown = len(self._showing) if self._kinds else 0
            if not self._kinds:
                self._try_axes(base)
                self._try_sizes(base, rank)
            elif rank > self._rank:
                self._try_ranks(base, rank)
            self._try_dtypes(base, dtypes - self._kinds)
            for args, statics in self._showing[shown:]:
                self._wait_for_variants(args, statics)
            self._kinds |= dtypes
            self._rank = max(rank, self._rank)
            self._try_waiting(primitives)

    def forms(self) -> list[Form]:
        """The forms that are known by now."""
        with self._lock:
            return list(self.by_form.values())

    def count(self) -> int:
        """How many forms are known, counted for each variant and choice."""
        return sum(len(form.variants) + len(form.choices) for form in self.forms())

    # --- the first operands -----------------------------------------------------

    def _begin(self) -> _Base:
        if self._base is None:
            if self._is_beginning:
                self._meets_itself = True
                raise TypeError(
                    "What a pattern looks for calls a function of jaxrewrite.transform, in "
                    "which the same pattern is in force. Call the function itself, or use a "
                    "table without the pattern." + self.pattern.both()
                )
            self._is_beginning, self._meets_itself = True, False
            try:
                base = self._first_traces()
            finally:
                self._is_beginning = False
            for probe in self.pattern.probes:
                self._try_all(probe)
            unused = {*range(len(self.pattern.names))} - {*self.pattern.bodies} - self._used
            if unused:
                names = ", ".join(repr(self.pattern.names[i]) for i in sorted(unused))
                raise TypeError(
                    f"What a pattern looks for does not use its operand {names}, which could "
                    "then be anything." + self.pattern.both()
                )
            self._needs = [form.graph.lasting_primitives() for form in self.forms()]
            self._base = base
        return self._base

    def _first_traces(self) -> _Base:
        """Trace the function at the first operands at which that is possible."""
        pattern = self.pattern
        errors: list[Exception] = []
        for size in (_SIZE, *_SIZES):
            for args in _base_args(pattern, size, _FLOAT):
                for statics in pattern.statics.with_one_axis(_rank(args)):
                    self._try(args, statics, None, errors)
                if self.by_form:
                    ranks = tuple(len(getattr(arg, "shape", ())) for arg in args)
                    return _Base(args, ranks, _kinds(args))
        error = TypeError(
            "What a pattern looks for can't be traced at any operands that its "
            "annotations allow. Annotate the operands, or give probes=." + pattern.both()
        )
        raise error from (errors[0] if errors else None)

    # --- further operands -------------------------------------------------------

    def _try_axes(self, base: _Base) -> None:
        """Try other axes, once for each form."""
        statics = self.pattern.statics
        if statics.has_axes():
            for form in self.forms():
                known = min(form.choices, default=())
                for choice in statics.some(_rank(base.args)):
                    if statics.choice(choice) == known:
                        self._try(base.args, choice)

    def _try_sizes(self, base: _Base, highest: int) -> None:
        """Try small sizes together with other ranks, and each alone if that shows a form.

        Together, but for one size, they are tried with one choice of static parameters.
        """
        low, high = _ends(self.pattern, highest)
        before = dict(self.by_form), list(self._showing), dict(self._tried)
        every = self._choices_by_form()
        size_three, size_two, size_one = _SIZES
        is_simple = all(form.graph.is_of_all_sizes() for form in self.forms())
        if (
            (
                (is_simple and low[0] == base.ranks)
                or self._first_of(base, low, size_three, every[:1])
            )
            and self._first_of(base, high, size_two, every)
            and (is_simple or self._first_of(base, [base.ranks], size_one, every[:1]))
            and len(self.by_form) == len(before[0])
        ):
            return
        # Changes are tried one by one, because one of them showed a form.
        self.by_form, self._showing, self._tried = before
        for size in _SIZES:
            self._first_of(base, [base.ranks], size)
        self._try_ranks(base, highest)

    def _first_of(
        self,
        base: _Base,
        several: Iterable[tuple[int, ...]],
        size: int = _SIZE,
        wanted: Sequence[Choice] | None = None,
    ) -> bool:
        """Whether the function could be traced at the first ranks at which that is possible."""
        return any(
            self._try_likewise(_args(self.pattern, ranks, base.kinds, size), wanted)
            for ranks in several
        )

    def _choices_by_form(self) -> list[Choice]:
        """A choice of the static parameters for each form."""
        forms = [form for form in self.forms() if None in form.variants]
        return list(dict.fromkeys(min(form.choices, default=()) for form in forms))

    def _try_ranks(self, base: _Base, highest: int) -> None:
        """Try the lowest and the highest ranks, and all if that shows a form."""
        count = len(self.by_form)
        for combinations in _ends(self.pattern, highest):
            self._first_of(base, combinations)
        if len(self.by_form) == count:
            return
        since = 0
        for ranks in _ranks(self.pattern, highest):
            count = len(self.by_form)
            if self._try_all(_args(self.pattern, ranks, base.kinds)):
                since = since + 1 if len(self.by_form) == count else 0
            if since == _ENOUGH:
                break

    def _try_dtypes(self, base: _Base, dtypes: Set[Any]) -> None:
        """Try operands that are all of another dtype, and one operand of another dtype.

        The latter are tried only for functions with primitives of which dtypes decide.
        """
        pattern, count = self.pattern, len(base.kinds)
        known = sorted((d for d in dtypes if isinstance(d, np.dtype)), key=str)
        changes = [(dtype,) * count for dtype in known]
        if count > 1 and not all(f.graph.is_of_all_dtypes() for f in self.forms()):
            inexact = [d for d in known if jnp.issubdtype(d, jnp.inexact)]
            for others in dict.fromkeys(((base.kinds), *((d,) * count for d in inexact))):
                for i in range(count):
                    changes += ((*others[:i], dtype, *others[i + 1 :]) for dtype in known)
        tried = {tuple(base.args)}
        for kinds in changes:
            shown = len(self.by_form)
            args = _args(pattern, base.ranks, kinds)
            if args is None or tuple(args) in tried:
                continue
            tried.add(tuple(args))
            if self._try_likewise(args) and len(self.by_form) > shown:
                self._try_all(args)

    def _wait_for_variants(self, args: Sequence[Any], statics: dict[str, Any]) -> None:
        """Note that a batched function is to be tried, if batching changes more than shapes."""
        traced = traced_form(self.pattern, args, statics, None)
        if isinstance(traced, Exception) or traced.graph.core()[0].is_batched_likewise():
            return
        self._waiting += ((args, statics, variant) for variant in self._variants)

    def _may_be_batched_so(
        self, variant: Variant, primitives: Set[Primitive] | None
    ) -> bool:
        """Whether a program of some primitives may contain a batched function."""
        needs = self._of_variant.get(variant)
        return needs is None or primitives is None or needs <= primitives

    def _try_waiting(self, primitives: Set[Primitive] | None) -> None:
        """Try the batched functions that a program of some primitives may contain.

        A variant has the same primitives at all operands, as far as these are none that
        functions have for some shapes alone. The first operands tell which.
        """
        waiting, self._waiting = self._waiting, []
        for args, statics, variant in waiting:
            if not self._may_be_batched_so(variant, primitives):
                self._waiting.append((args, statics, variant))
                continue
            self._try(args, statics, variant)
            if variant not in self._of_variant:
                traced = traced_form(
                    self.pattern, _with_batch(args, variant), statics, variant
                )
                if isinstance(traced, Traced):
                    primitives_of_variant = traced.graph.core()[0].primitives()
                    self._of_variant[variant] = frozenset(
                        p for p in primitives_of_variant if p.name not in BATCHED_LIKEWISE
                    )

    def _try_likewise(
        self, args: Sequence[Any] | None, wanted: Sequence[Choice] | None = None
    ) -> bool:
        """Try operands with one choice for each form, and with all if that shows another.

        Returns whether the function could be traced.
        """
        if args is None:
            return False
        statics = self.pattern.statics
        wanted = self._choices_by_form() if wanted is None else wanted
        count, succeeded = len(self.by_form), False
        for choice in statics.with_one_axis(_rank(args)):
            if statics.choice(choice) in wanted:
                succeeded |= self._try(args, choice)
        if len(self.by_form) > count:
            self._try_all(args)
        return succeeded

    def _try_all(self, args: Sequence[Any] | None) -> bool:
        if args is None:
            return False
        succeeded = False
        for statics in self.pattern.statics.some(_rank(args)):
            succeeded |= self._try(args, statics)
        return succeeded

    def _try(
        self,
        args: Sequence[Any],
        statics: dict[str, Any],
        variant: Variant = None,
        errors: list[Exception] | None = None,
    ) -> bool:
        """Whether the function could be traced, whose form is then known."""
        if variant is not None:
            args = _with_batch(args, variant)
        key = tuple(map(str, args)), repr(statics), variant
        known = self._tried.get(key)
        if known is not None:
            return known
        traced = traced_form(self.pattern, args, statics, variant)
        if not isinstance(traced, Traced):
            if self._meets_itself:
                raise traced
            self._tried[key] = False
            if errors is not None:
                errors.append(traced)
            return False
        self.pattern.check(traced)
        self._tried[key] = True
        self._used |= {ref[1] for ref in traced.graph.refs() if ref[0] in _OPERANDS}
        self._add(traced.graph, args, statics, variant)
        return True

    def _add(
        self, graph: Graph, args: Sequence[Any], statics: dict[str, Any], variant: Variant
    ) -> None:
        graph, _ = graph.core()
        key = graph.form()
        form = self.by_form.get(key)
        if form is None:
            form = self.by_form[key] = Form(graph)
            if variant is None:
                self._showing.append((args, statics))
        form.choices.add(self.pattern.statics.choice(statics))
        variants = [variant]
        if variant is None and graph.is_batched_likewise():
            variants += self._variants
            ranks = map(functools.partial(_has_one_rank, self.pattern), self._operands)
            if not graph.is_of_all_sizes() or any(ranks):
                # Else the function itself takes operands of more axes.
                variants += self._several
        elif variant is not None:
            # Batched again, most functions have a form that they have batched once.
            variants += [more for more in self._several if variant[0] in (more or ())]
        known = dict.fromkeys(form.variants)
        if not known.keys() >= {*variants}:
            known.update(dict.fromkeys(variants))
            # The function itself is tried first.
            form.variants = sorted(known, key=_order_of_variants)


_OPERANDS = ("operand", "scalar")


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


def _guards(pattern: Pattern, i: int) -> tuple[Alternative, ...]:
    return pattern.signature.operands[i]


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


def _ends(pattern: Pattern, highest: int) -> list[list[tuple[int, ...]]]:
    """The lowest and the highest combinations of ranks."""
    ascending = sorted(_ranks(pattern, highest), key=lambda r: (sum(r), r))
    return [ascending[:_FEW], ascending[: -_FEW - 1 : -1]]


def _is_variadic(token: str) -> bool:
    return "..." in token or "*" in token[:2]


def _ranks(pattern: Pattern, highest: int) -> list[tuple[int, ...]]:
    """Combinations of ranks, the most common ranks first; 0 for numbers."""
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
        combinations = list(itertools.product(*possible))
    else:
        # All equal, one other than the rest, and two of a kind apart from the rest.
        combinations = []
        for r in range(highest + 1):
            equal = [r if r in ranks else ranks[-1] for ranks in possible]
            combinations.append(tuple(equal))
            for i in free:
                for other in possible[i]:
                    combinations.append((*equal[:i], other, *equal[i + 1 :]))
    combinations = list(dict.fromkeys(tuple(f) for f in combinations))
    return sorted(combinations, key=lambda f: (max(f) - min(f) > 0, abs(max(f) - 2), f))


_ODD = {int: 1009, float: 0.7371, complex: 0.7371 + 0.1931j}


def _args(
    pattern: Pattern,
    ranks: Sequence[int],
    kinds: Sequence[Any],
    size: int = _SIZE,
) -> list[Any] | None:
    """Operands of these ranks and dtypes, as far as annotations allow them."""
    args: list[Any] = []
    guards: list[Any] = []
    for i, rank in enumerate(ranks):
        if i in pattern.scalars:
            args.append(_ODD[pattern.scalars[i]] + i)
            guards.append(None)
            continue
        if i in pattern.bodies:
            args.append(Hole(num_ys=pattern.num_ys))
            guards.append(None)
            continue
        arg, guard = _operand(_guards(pattern, i), rank, kinds[i], size, _is_wide())
        if arg is None:
            return None
        args.append(arg)
        guards.append(guard)
    return args if guards_hold(guards, args) else None


@functools.lru_cache(4096)
def _operand(
    alternatives: Sequence[Alternative], rank: int, dtype: Any, size: int, is_wide: bool
) -> tuple[ShapedArray | None, Any]:
    """An operand, and the guard that allows it."""
    for alternative in alternatives:
        shape = _shape(alternative.guard, rank, size)
        for kind in dict.fromkeys((dtype, *_DTYPES)):
            if shape is None or (not is_wide and kind in _WIDE):
                continue
            aval = ShapedArray(shape, np.dtype(kind))
            if guards_hold([alternative.guard], [aval]):
                return aval, alternative.guard
    return None, None


def _kinds(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(getattr(arg, "dtype", _FLOAT) for arg in args)


@functools.lru_cache(4096)
def _order_of_variants(variant: Variant) -> Any:
    """Fewer axes, over more of the operands, come first."""
    levels = variant or ()
    return len(levels), -sum(map(sum, levels)), str(levels)


def _is_wide() -> bool:
    """Whether there are dtypes of 64 bits."""
    return jax.dtypes.canonicalize_dtype(np.int64) == np.int64


_DTYPES = tuple(
    np.dtype(d)
    for d in (jnp.float32, jnp.int32, jnp.bool_, jnp.complex64, jnp.bfloat16, jnp.float16,
              jnp.uint32, jnp.int8, jnp.uint8, jnp.int16, jnp.uint16, jnp.float64, jnp.int64)
)  # fmt: skip

_WIDE = {np.dtype(d) for d in ("int64", "uint64", "float64", "complex128")}


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


_FLOAT = np.dtype(jnp.float32)

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
        for i in reversed(range(count)):
            yield tuple(other if j == i else dtype for j in range(count))


def _with_batch(args: Sequence[Any], variant: Variant) -> list[Any]:
    """The operands with more leading axes where the variant has them."""
    counts = [count_of_batches(variant, i) for i in range(len(args))]
    return [
        arg.update(shape=(*(_SIZE,) * count, *arg.shape)) if count else arg
        for arg, count in zip(args, counts, strict=True)
    ]


def _base_args(pattern: Pattern, size: int, dtype: Any) -> Iterator[Sequence[Any]]:
    """Operands of several ranks, until the function can be traced."""
    yield from pattern.probes
    for kinds in _base_kinds(pattern, dtype):
        for ranks in _ranks(pattern, 4):
            args = _args(pattern, ranks, kinds, size)
            if args is not None:
                yield args


def _variants(pattern: Pattern) -> list[Variant]:
    """All arrays batched, and some of them: any of four, or all but one and one of more."""
    if pattern.bodies:
        return []
    arrays = [i for i in range(len(pattern.names)) if i not in pattern.scalars]
    sets = [tuple(arrays)]
    if len(arrays) <= 4:
        sets += [
            batched
            for n in range(len(arrays) - 1, 0, -1)
            for batched in itertools.combinations(arrays, n)
        ]
    else:
        sets += [tuple(j for j in arrays if j != i) for i in arrays]
        sets += [(i,) for i in arrays]
    return [(tuple(i in batched for i in range(len(pattern.names))),) for batched in sets]


def _several(pattern: Pattern) -> list[Variant]:
    """Two and three axes. Of many arrays, the same arrays are batched each time, or all."""
    once = [variant[0] for variant in _variants(pattern) if variant is not None]
    if not once:
        return []
    several: list[Variant] = []
    for axes, few in ((2, 3), (3, 2)):
        is_few = len(pattern.names) <= few
        for choices in [once] if is_few else [(once[0], other) for other in once]:
            several += itertools.product(choices, repeat=axes)
    return list(dict.fromkeys(several))


def _has_one_rank(pattern: Pattern, i: int) -> bool:
    """Whether the annotation of an operand says how many axes it has."""
    return all(
        alternative.guard is not None
        and not any(map(_is_variadic, alternative.guard.dim_str.split()))
        for alternative in _guards(pattern, i)
    )
