"""The oracle: the dense program on the arrays that the values stand for."""

from __future__ import annotations

import functools
import re
import traceback
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import Interval, Masked, Product, Unitful, UnitsError

from . import numpy_run
from .names import NAMES


def is_value(x: Any) -> bool:
    return isinstance(x, jaxrewrite.Value)


def dense(tree: Any) -> Any:
    """Values made dense from the inside out, by the formula of each type on arrays alone.

    So the library's own way, through the rules of what is inside, is checked by it. Types
    that are never dense are the array that they hold; an interval is its lower bound.
    """
    return jax.tree.map(lambda x: _dense(x) if is_value(x) else x, tree, is_leaf=is_value)


def _dense(v: Any) -> Any:
    if isinstance(v, jaxrewrite.Batched):
        if not v.length:
            return jnp.zeros(v.shape, v.dtype)
        if v.ndims and not v.lengths():
            return _dense(v.element)  # Inside of `jax.vmap`, it is one of them.
        cut = _cut_traced if _is_traced(v) else _cut
        elements = [
            jax.tree.map(functools.partial(cut, i), v.element) for i in range(v.length)
        ]
        return jnp.stack([_dense(element) for element in elements])
    if isinstance(v, Masked | Unitful):
        return dense(v.array)
    if isinstance(v, Interval):
        return dense(v.lower)
    inner = jax.tree.map(
        lambda x: _dense(x) if is_value(x) else x,
        v,
        is_leaf=lambda x: x is not v and is_value(x),
    )
    return inner.materialise()


def _is_traced(v: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(v))


def _cut_traced(i: int, leaf: Any) -> Any:
    return leaf[i]


def _cut(i: int, leaf: Any) -> Any:
    """Without a program to compile for each shape."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf[i]
    return jnp.asarray(np.asarray(leaf)[i])


def stripped(tree: Any) -> Any:
    """Results as a user has them: what is never dense by what it holds."""

    def one(x: Any) -> Any:
        if isinstance(x, (Masked, Unitful, Interval)):
            return dense(x)
        if is_value(x) and _never_dense(x):
            return dense(x)
        return jaxrewrite.materialise(x)

    return jax.tree.map(one, tree, is_leaf=is_value)


def _never_dense(v: Any) -> bool:
    parts = jax.tree.leaves(v, is_leaf=lambda x: x is not v and is_value(x))
    return any(
        isinstance(part, Masked | Unitful | Interval) or _never_dense(part)
        for part in parts
        if is_value(part) and part is not v
    )


def claims(tree: Any) -> list[Any]:
    """Whether Masked results lack entries, of operands that are wholly known: booleans.

    A sum of no entries is missing by the definition of `Masked`, and so is what is gathered
    from beyond an array where the program fills in no number.
    """
    masked = [x for x in jax.tree.leaves(tree, is_leaf=is_value) if isinstance(x, Masked)]
    parts = [(dense(x.array), dense(x.mask)) for x in masked]
    return [(mask & (array == array)).any() for array, mask in parts]


# --- comparing --------------------------------------------------------------------------------

TOLERANCE = {
    "float32": 2e-5,
    "complex64": 2e-5,
    "float64": 1e-11,
    "complex128": 1e-11,
    "bfloat16": 2e-2,
    "float16": 3e-3,
}


def wide(x: Any) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype == jax.dtypes.float0:
        return np.zeros(x.shape)
    if x.dtype.kind in "biuc":
        return x.astype(np.complex128) if x.dtype.kind == "c" else x
    return x.astype(np.float64)


def same(got: Any, want: Any, tolerance: float | None = None) -> bool:
    """Up to what rounding does, relative to the largest entry."""
    got, want = np.asarray(got), np.asarray(want)
    if tolerance is None:
        tolerance = TOLERANCE.get(str(want.dtype), 0.0)
    g, w = wide(got), wide(want)
    if g.dtype.kind in "biu" and w.dtype.kind in "biu":
        return bool((g == w).all())
    finite = np.isfinite(w)
    with np.errstate(all="ignore"):
        if not ((g == w) | (np.isnan(g) & np.isnan(w)))[~finite].all():
            return False
        if not np.isfinite(g[finite]).all():
            return False
        error = np.abs(g[finite] - w[finite]).max(initial=0.0)
        return bool(error <= tolerance * np.abs(w[finite]).max(initial=0.0))


def key_data(x: Any) -> Any:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        return jax.random.key_data(x)
    return x


def kinds(tree: Any) -> list[Any]:
    return [(jnp.shape(x), str(jnp.result_type(x))) for x in jax.tree.leaves(tree)]


# --- running -----------------------------------------------------------------------------------


@functools.lru_cache(16)
def evaluated(text: str, x64: bool) -> Any:
    """The value of an expression. ``x64``: whether JAX has double precision now."""
    del x64
    return eval(text, NAMES)


@functools.lru_cache(8)
def operands_of(program: Any, shift: int = 0) -> tuple[Any, ...]:
    names = NAMES
    if shift:
        names = {**NAMES}
        for maker in ("u", "idx", "mask", "order", "some"):
            names[maker] = lambda seed, *a, _f=NAMES[maker], **k: _f(seed + shift, *a, **k)
    if not shift:
        x64 = jax.config.jax_enable_x64
        return tuple(evaluated(text, x64) for text in program.operands)
    return tuple(eval(text, names) for text in program.operands)


def function_of(program: Any) -> Any:
    space = dict(NAMES)
    exec(compile(program.function(), "<program>", "exec"), space)
    return space["f"]


def floating(tree: Any) -> tuple[list[Any], Any]:
    """The inexact leaves of a tree, and a function that puts others in their place."""
    leaves, treedef = jax.tree.flatten(tree)
    where = [jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]

    def filled(new: Any) -> Any:
        rest = iter(new)
        both = zip(leaves, where, strict=True)
        return treedef.unflatten([next(rest) if w else x for x, w in both])

    return [x for x, w in zip(leaves, where, strict=True) if w], filled


def total(results: Any) -> Any:
    """One real number, of all that is inexact."""
    weighted = jnp.zeros((), jnp.float32)
    for x in jax.tree.leaves(dense(results)):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            weights = jnp.cos(jnp.arange(x.size, dtype=x.real.dtype)).reshape(x.shape)
            weighted = weighted + (x.real * weights).sum()
    return weighted


def along(leaves: list[Any]) -> list[Any]:
    return [jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype) for x in leaves]


def _leaf_by_leaf(xs: tuple[Any, ...]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *xs)


def _as_elements(xs: tuple[Any, ...]) -> Any:
    """A value without leaves is the same for all, whatever holds it."""
    is_batched = is_value(xs[0]) and jax.tree.leaves(xs[0])
    return NAMES["batched"](xs) if is_batched else _leaf_by_leaf(xs)


# Modes that run a program once for several operands, and how these are put together.
SEVERAL = {"vmap": _leaf_by_leaf, "elements": _as_elements}


def in_mode(program: Any, f: Any, made: Any, convert: Any, values: bool) -> Any:
    """Run ``f``, dense or transformed, in the program's mode.

    ``made`` gives operands, values or arrays; ``convert`` takes results to arrays.
    """
    mode = program.mode
    if mode in ("eager", "jit", "masked", "hidden", "bounds"):
        run = lambda *vs: convert(f(*vs))
        return (jax.jit(run) if mode == "jit" and values else run)(*made(0))
    if mode in SEVERAL:
        both = [made(0), made(5000)]
        if values:
            stacked = [*map(SEVERAL[mode], zip(*both, strict=True))]
            return jax.vmap(lambda vs: convert(f(*vs)), axis_size=2)(stacked)
        results = [convert(f(*vs)) for vs in both]
        return jax.tree.map(lambda *xs: jnp.stack(xs), *results)
    leaves, filled = floating(made(0))
    if mode == "jvp":
        run = lambda xs: convert(f(*filled(xs)))
        return jax.jvp(run, (leaves,), (along(leaves),))
    run = lambda xs: total(f(*filled(xs)))
    return {"grad": jax.grad, "jacfwd": jax.jacfwd}[mode](run)(leaves)


def transformed(program: Any) -> Any:
    return jaxrewrite.transform(
        function_of(program), rules=program.rules, materialise=program.policy
    )


def run_values(program: Any, wrong: list[Any]) -> Any:
    f = transformed(program)

    def convert(results: Any) -> Any:
        # Of nothing all is missing, as with `numpy.ma`.
        is_whole = all(x.size for x in jax.tree.leaves(operands_of(program)))
        if program.mode == "eager" and is_whole:
            wrong.extend(claims(results))
        return stripped(results)

    return in_mode(program, f, lambda shift: operands_of(program, shift), convert, True)


def run_dense(program: Any, cast: Any = None, f: Any = None) -> Any:
    """The dense program, of the leaves where it is differentiated."""
    f = f or function_of(program)
    cast = cast or (lambda tree: tree)
    if program.mode not in ("grad", "jvp", "jacfwd"):
        made = lambda shift: cast(dense(operands_of(program, shift)))
        return in_mode(program, f, made, lambda tree: tree, False)
    made = lambda shift: cast(operands_of(program, shift))
    on_dense = lambda *vs: f(*map(dense, vs))
    return in_mode(program, on_dense, made, lambda tree: tree, False)


# --- the second look ---------------------------------------------------------------------------


class Noise:
    """Changes each array by about what rounding it does."""

    def __init__(self, seed: int, eps: float, zeros: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.eps = eps
        self.zeros = zeros

    def __call__(self, tree: Any) -> Any:
        return jax.tree.map(self.one, tree)

    def one(self, x: Any) -> Any:
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        if isinstance(x, jax.core.Tracer):
            finite = jnp.where(jnp.isfinite(x), jnp.abs(x), 0)
            scale = jnp.max(finite, initial=0.0) if self.zeros else jnp.abs(x)
            return x + (scale * self.rng.uniform(-1, 1, x.shape) * self.eps).astype(x.dtype)
        a = np.asarray(x)
        kind = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
        size = np.abs(kind)
        if self.zeros:
            size = np.max(size[np.isfinite(size)], initial=0.0)
        with np.errstate(all="ignore"):
            noisy = kind + size * self.rng.uniform(-1, 1, a.shape) * self.eps
        return jnp.asarray(noisy, x.dtype)


def widened(tree: Any) -> Any:
    """Floating leaves in double precision."""

    def one(x: Any) -> Any:
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
        return jnp.asarray(x, jnp.complex128 if is_complex else jnp.float64)

    return jax.tree.map(one, tree)


def noisy_function(program: Any, noise: Any) -> Any:
    head, *lines = program.function().splitlines()
    # The operands, too: zeros by structure are noisy no other way.
    own = [f"    v{i} = _noise(v{i})" for i in range(len(program.operands))]
    steps = [re.sub(r"^(    t\d+ = )(.*)$", r"\1_noise(\2)", line) for line in lines]
    steps = [head, *own, *steps]
    space = {**NAMES, "_noise": noise}
    exec(compile("\n".join(steps), "<noisy>", "exec"), space)
    return space["f"]


EPS = {"float32": 1.2e-7, "complex64": 1.2e-7, "bfloat16": 8e-3, "float16": 1e-3}


def simulations(program: Any, zeros: bool) -> list[list[np.ndarray]]:
    """Results of the dense program with its numbers changed a little at each step.

    In double precision; where that is another program, which JAX refuses, in its own.
    """
    if _reads_bits(program):
        return _simulations(program, zeros, False)  # The bits of a wider number are others.
    for wide_program in _in_double(program):
        try:
            return _simulations(wide_program, zeros, True)
        except Exception:  # noqa: BLE001, S112 - branches of different dtypes, say
            continue
    return _simulations(program, zeros, False)


def _in_double(program: Any) -> tuple[Any, Any]:
    """Programs that may run in double precision, of which the first one is as it was written."""
    program = program.needed()
    return program, program.wider()


def _reads_bits(program: Any) -> bool:
    return any("bitcast_convert_type" in step for step in program.steps)


def _coarsest(program: Any) -> float:
    """The rounding of the narrowest numbers in a program."""
    eps = 2e-16
    text = " ".join((*program.operands, *program.steps))
    given = {str(x.dtype) for x in jax.tree.leaves(dense(operands_of(program)))}
    for name, own in EPS.items():
        if name in given or f"'{name}'" in text:
            eps = max(eps, own)
    if "reduce_precision" in text:
        eps = max(eps, 2.0**-11)  # to the ten bits of `operations`
    return eps


def _simulations(program: Any, zeros: bool, double: bool) -> list[list[np.ndarray]]:
    eps = _coarsest(program)
    found = []
    for seed in range(3):
        noise = Noise(seed, 2 * eps, zeros)
        with jax.enable_x64(double or program.x64):
            f = noisy_function(program, noise)
            widen = widened if double else lambda tree: tree
            cast = lambda tree, noise=noise, widen=widen: noise(widen(tree))
            result = run_dense(program, cast, f)
            found.append([wide(x) for x in jax.tree.leaves(result)])
    return found


def explained(
    got: list[np.ndarray],
    want: list[np.ndarray],
    simulated: list[list[np.ndarray]],
    eps: float,
) -> bool:
    """Whether results differ by no more than those of the dense program do by rounding.

    ``eps`` is the rounding of the narrowest numbers in it.
    """
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        others = [run[i] for run in simulated]
        if any(other.shape != w.shape for other in others):
            return False
        if w.dtype.kind in "biu" and g.dtype.kind in "biu":
            certain = np.ones(w.shape, bool)
            for other in others:
                certain &= other == w
            if not (g == w)[certain].all():
                return False
            continue
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(other - others[0]) for other in others], axis=0)
            spread = np.maximum(spread, np.abs(w - others[0]))
            equal = (g == w) | (np.isnan(g) & np.isnan(w))
            known = np.isfinite(spread)
            # What is not finite in all of them has to be so here.
            fixed = ~np.isfinite(w) & np.all(
                [(other == w) | (np.isnan(other) & np.isnan(w)) for other in others],
                axis=0,
            )
            if not equal[fixed].all():
                return False
            allowed = 30 * np.max(spread[known], initial=0.0)
            if not w.any():
                # All cancels, as in x - x, where x is rounded once.
                allowed = max(allowed, 1e-6, 8 * eps)
            error = np.abs(g - w)[known]
            if not np.isfinite(error).all() or (error > allowed).any():
                return False
    return True


# --- verdicts ------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    kind: str
    detail: str = ""
    where: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES


FAILURES = (
    "wrong",
    "kind",
    "nameless",
    "crash",
    "ambiguous",
    "materialise",
    "claim",
    "broken",
)

# What a type refuses by design, with the reason.
REFUSED = [
    (UnitsError, "", "units that do not fit, plain zeros beside units"),
    (ValueError, "aligns an axis named|gives two axes the same name", "names do not fit"),
    (
        jaxrewrite.MaterialisationError,
        "some entries may be missing|known within bounds only|it has units"
        "|needs operands of equal units",
        "never dense: there is no rule for this primitive",
    ),
    # A product of bfloat16 with sums of float32, of two and of three axes, as `lax.dot_general`
    # has it without any value, too.
    (
        jax.errors.JaxRuntimeError,
        "Unsupported element type for DotThunk",
        "XLA has no such product on a CPU",
    ),
    (TypeError, "Interval has no bounds", "no bounds are known of this"),
    (
        TypeError,
        "(would|which) counts? (entries|those) that are missing",
        "it counts entries",
    ),
    (TypeError, "The array counts entries that are missing", "it counts entries"),
    (TypeError, "returned a cotangent Unitful", "units of a rule that is not linear"),
    (
        TypeError,
        "which maps its tangent to tangents of its leaves",
        "never dense, no way back",
    ),
    (
        ValueError,
        "Interval: (lower must not be above|lower must be real)",
        "no interval",
    ),
]


def refusal(error: BaseException) -> str | None:
    chain, text = error, ""
    while chain is not None:
        text += str(chain)
        chain = chain.__cause__
    for kind, pattern, reason in REFUSED:
        if isinstance(error, kind) and re.search(pattern, text):
            return reason
    return None


def place_of(error: BaseException) -> str:
    """The primitive, the rule, and the innermost function that an error comes from."""
    notes = " ".join(getattr(error, "__notes__", ()))
    primitive = re.search(r"in primitive '([\w-]+)'", notes)
    rule = re.search(r"raised by the rule (\w+) \(.*?/jaxrewrite/([\w/]+\.py:\d+)\)", notes)
    noted = [f"in {primitive[1]}"] if primitive else []
    noted += [f"by {rule[1]} ({rule[2]})"] if rule else []
    return " ".join((*noted, _frame(error)))


def _frame(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [x for x in frames if "/jaxrewrite/" in x.filename]
    if not own:
        return frames[-1].name if frames else ""
    last = own[-1]
    rules = [x for x in own if "/values/" in x.filename]
    name = lambda x: f"{x.filename.rsplit('/jaxrewrite/', 1)[1]}:{x.name}"
    return f"{name(last)} < {name(rules[-1])}" if rules else name(last)


_TAINTED = Verdict("skipped", "products with numbers that are not finite")


def judge(program: Any, tainted: bool = False) -> Verdict:
    """Run a program both ways. ``tainted``: products met what is not finite."""
    with warnings.catch_warnings(), jax.enable_x64(program.x64):
        warnings.simplefilter("ignore")
        try:
            operands_of(program)
        except Exception as error:  # noqa: BLE001 - no such value
            return Verdict("invalid", f"{type(error).__name__}: {error}")
        if program.mode in ("masked", "hidden", "slope", "bounds"):
            verdict = partly.judge(program)
            return _TAINTED if tainted and verdict.kind == "wrong" else verdict
        tainted = tainted or any(map(is_spoilt_product, operands_of(program)))
        return _quickly(program) or _judge(program, tainted)


def is_spoilt_product(operand: Any) -> bool:
    """Whether it is, or holds, a product with numbers that are not finite.

    Its factors may be multiplied in any order, which differ in what is NaN and what infinite.
    """
    if not is_value(operand):
        return False
    if isinstance(operand, Product):
        return not all(np.isfinite(wide(x)).all() for x in jax.tree.leaves(operand))
    fields = jax.tree.leaves(vars(operand), is_leaf=is_value)
    return any(map(is_spoilt_product, fields))


def _quickly(program: Any) -> Verdict | None:
    """What NumPy finds, if that is nothing wrong; of any other program JAX has the word."""
    try:
        if program.mode in SEVERAL:
            operands_of(program, 5000)  # now, as tracing keeps them for itself
        want = numpy_run.run(lambda: run_dense(program))
        got, wrong, operands = numpy_run.run(lambda: _seen(program))
    except numpy_run.Broken:
        return None  # NumPy has no such operation: JAX has.
    except Exception as error:  # noqa: BLE001 - for JAX to find out, if it is not meant
        return meant(program, error)
    if jax.tree.structure(got) != jax.tree.structure(want) or any(wrong):
        return None
    pairs = [*operands, *zip(*map(jax.tree.leaves, (got, want)), strict=True)]
    is_right = all(kinds(g) == kinds(w) and same(g, w) for g, w in pairs)
    return Verdict("ok") if is_right else None


def meant(program: Any, error: Exception) -> Verdict | None:
    """The verdict of an error that is meant."""
    if _is_nameless(error):
        return None
    if program.policy == "forbid" and isinstance(error, jaxrewrite.MaterialisationError):
        return Verdict("forbidden")
    reason = refusal(error)
    return Verdict("refused", reason) if reason else None


def _seen(program: Any) -> tuple[Any, list[Any], list[Any]]:
    wrong: list[Any] = []
    operands = [(jaxrewrite.materialise(v), dense(v)) for v in _comparable(program)]
    return run_values(program, wrong), wrong, operands


def _comparable(program: Any) -> list[Any]:
    """The operands that `jaxrewrite.materialise` takes."""
    annotated = Masked, Unitful, Interval
    values = [v for v in operands_of(program) if is_value(v)]
    return [v for v in values if not isinstance(v, annotated) and not _never_dense(v)]


def _judge(program: Any, tainted: bool) -> Verdict:
    try:
        want = run_dense(program)
    except Exception as error:  # noqa: BLE001 - JAX does not do it
        return Verdict("invalid", f"{type(error).__name__}: {error}")
    if not all(hasattr(x, "dtype") for x in jax.tree.leaves(want)):
        return Verdict("invalid", "a result is no array")
    try:
        for v in _comparable(program):
            own, whole = key_data(jaxrewrite.materialise(v)), key_data(dense(v))
            if kinds(own) != kinds(whole) or not (tainted or same(own, whole)):
                return Verdict("materialise", f"{own} against {whole}")
        wrong: list[Any] = []
        got = jax.block_until_ready(run_values(program, wrong))
    except Exception as error:  # noqa: BLE001 - any is what is looked for
        return meant(program, error) or crash(program, error)
    got, want = (jax.tree.map(key_data, tree) for tree in (got, want))
    if jax.tree.structure(got) != jax.tree.structure(want) or kinds(got) != kinds(want):
        if program.mode in ("grad", "jacfwd", "jvp"):
            got, want = jax.tree.leaves(got), jax.tree.leaves(want)
        if kinds(got) != kinds(want):
            return Verdict("kind", f"{kinds(got)} against {kinds(want)}")
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    count = len(want)
    keep = [i for i, x in enumerate(want) if jnp.result_type(x) != jax.dtypes.float0]
    got, want = [got[i] for i in keep], [want[i] for i in keep]
    is_derivative = program.mode in ("grad", "jvp", "jacfwd")
    lacks_entries = any(map(bool, wrong))
    if all(map(same, got, want)):
        if lacks_entries and not tainted and not _is_empty(program):
            return Verdict("claim", "a Masked result lacks entries, and no operand does")
        return Verdict("ok")
    if tainted:
        return _TAINTED
    if is_derivative and _repeats_eigenvalues(program):
        primals = count // 2 if program.mode == "jvp" else 0
        got = [g if i < primals else w for i, g, w in zip(keep, got, want, strict=True)]
        if all(map(same, got, want)):
            return Verdict("skipped", "derivatives of eigenvectors of one eigenvalue")
    if lacks_entries and _is_empty(program):
        return Verdict("skipped", "sums of no entries are missing")
    if "Masked(" in str(program.operands) and re.search(_BEYOND, " ".join(program.steps)):
        return Verdict("skipped", "functions of what is missing beyond an array")
    # No entries times what is not finite are nothing, and zeros in their place are NaN. So is
    # what the dense program multiplies infinities by where a value multiplies nothing.
    is_empty, is_spoilt = _meets_no_entries(program), _is_spoilt(program)
    if is_derivative and is_spoilt:
        want = _without_unread(program, keep, want)
        if all(map(same, got, want)):
            return Verdict("ok", "what the results do not depend on is not finite")
    if is_empty and (is_derivative or is_spoilt):
        got = [jnp.where(jnp.isnan(g), w, g) for g, w in zip(got, want, strict=True)]
    if is_derivative:
        # Codes of eight bits go up to 57344. Their products with cotangents may be beyond half
        # precision before they are added, where the dense program adds first.
        if "Float8" in str(program.operands):
            got = [
                jnp.where(_is_beyond_half(g), w, g) for g, w in zip(got, want, strict=True)
            ]
        # A structural zero takes the other factor to be finite, also in a derivative, which may
        # be NaN where the function is not, as that of an angle of zero.
        pairs = zip(got, want, strict=True)
        want = [jnp.where(jnp.isnan(w) & (g == 0), g, w) for g, w in pairs]
    if all(map(same, got, want)):
        return Verdict("skipped", "products of no entries, or zero, with infinity")
    detail = next(
        f"result {i}: {np.asarray(g)} against {np.asarray(w)}"
        for i, (g, w) in enumerate(zip(got, want, strict=True))
        if not same(g, w)
    )
    arrays = [wide(x) for x in got], [wide(x) for x in want]
    try:
        if (
            program.table
            and not _reads_bits(program)
            and _is_nearer(program, keep, *arrays)
        ):
            return Verdict("ok", detail)
        for zeros, kind in ((False, "ok"), (True, "doubtful")):
            simulated = simulations(program, zeros)
            simulated = [[run[i] for i in keep] for run in simulated]
            if explained(*arrays, simulated, _coarsest(program)):
                return Verdict(kind, detail)
    except Exception as error:  # noqa: BLE001 - a program that double precision changes
        detail += f"\n(not simulated: {type(error).__name__}: {error})"[:300]
    return Verdict("wrong", detail)


_EIGH = "jnp.linalg.eigh("


def _repeats_eigenvalues(program: Any) -> bool:
    """Whether the dense program asks for eigenvectors of eigenvalues that are equal.

    Up to rounding. Such vectors have no derivative, and JAX's is NaN or any number.
    """
    if _EIGH not in " ".join(program.steps):
        return False
    seen: list[np.ndarray] = []

    def eigh(*args: Any, **kwargs: Any) -> Any:
        result = jnp.linalg.eigh(*args, **kwargs)
        jax.debug.callback(lambda x: seen.append(wide(x)), result[0])
        return result

    text = program.function().replace(_EIGH, "_eigh(")
    space = {**NAMES, "_eigh": eigh}
    exec(compile(text, "<seen>", "exec"), space)
    jax.block_until_ready(space["f"](*dense(operands_of(program))))
    jax.effects_barrier()
    rounding = 100 * _coarsest(program)
    gaps = [(np.diff(x), np.abs(x).max(-1, initial=0.0)) for x in seen]
    return any((gap <= rounding * size[..., None]).any() for gap, size in gaps)


def _is_nearer(
    program: Any, keep: list[int], got: list[np.ndarray], want: list[np.ndarray]
) -> bool:
    """Whether results are no further from those in double precision than the formula's are.

    What a table of patterns is for: a formula with less rounding, or that does not overflow.
    """
    for wide_program in _in_double(program):
        try:
            with jax.enable_x64(True):
                leaves = jax.tree.leaves(run_dense(wide_program, widened))
            break
        except Exception:  # noqa: BLE001, S112 - a carry of one dtype, say
            continue
    else:
        return False
    exact = [wide(leaves[i]) for i in keep]
    with np.errstate(all="ignore"):
        for g, w, x in zip(got, want, exact, strict=True):
            slack = 1e-6 * np.abs(x[np.isfinite(x)]).max(initial=0.0)
            is_near = np.abs(g - x) <= np.abs(w - x) + slack
            is_same = (g == w) | (g == x) | (np.isnan(g) & np.isnan(x))
            if not (is_near | is_same | (np.isfinite(g) & ~np.isfinite(w))).all():
                return False
    return True


# Indices that `operations` takes for ones beyond the array.
_BEYOND = r"jnp\.array\(\[[-\d, ]*9[-\d, ]*\]\)"


def _is_empty(program: Any) -> bool:
    return any(x.size == 0 for x in jax.tree.leaves(dense(operands_of(program))))


def _is_beyond_half(x: Any) -> Any:
    return ~jnp.isfinite(x) if x.dtype == jnp.float16 else jnp.zeros(x.shape, bool)


def _is_spoilt(program: Any) -> bool:
    """Whether an operand, or a part of one, has numbers that are not finite."""
    operands = operands_of(program)
    arrays = jax.tree.leaves(jax.tree.map(key_data, (operands, dense(operands))))
    return any(not np.isfinite(wide(x)).all() for x in arrays)


def _without_unread(program: Any, keep: list[int], want: list[Any]) -> list[Any]:
    """The derivatives, without what is NaN by entries that they do not depend on.

    The dense program multiplies these by zero. With a finite number in the place of what is not finite
    the derivatives are numbers, and they are the same with another one.
    """

    def with_number(number: float) -> list[Any]:
        def finite(x: Any) -> Any:
            is_float = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)
            return jnp.where(jnp.isfinite(x), x, number).astype(x.dtype) if is_float else x

        leaves = jax.tree.leaves(
            run_dense(program, lambda tree: jax.tree.map(finite, tree))
        )
        return [leaves[i] for i in keep]

    both = zip(want, with_number(1.5), with_number(-2.5), strict=True)
    return [jnp.where(jnp.isnan(w) & (a == b), a, w) for w, a, b in both]


def _meets_no_entries(program: Any) -> bool:
    results = jax.eval_shape(function_of(program), *dense(operands_of(program)))
    return _is_empty(program) or any(x.size == 0 for x in jax.tree.leaves(results))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:600]}"


def _is_nameless(error: BaseException) -> bool:
    """Whether an error has no text, or is of a private class of the library."""
    kind = type(error)
    is_private = kind.__name__.startswith("_") and kind.__module__.startswith("jaxrewrite")
    return is_private or not str(error).strip()


def crash(program: Any, error: BaseException) -> Verdict:
    if _is_nameless(error):
        return Verdict("nameless", _said(error), place_of(error))
    if not _runs_traced(program):
        return Verdict("invalid", _said(error))
    ambiguous = isinstance(error, jaxrewrite.AmbiguousRuleError)
    kind = "ambiguous" if ambiguous else "crash"
    return Verdict(kind, _said(error), place_of(error))


def _runs_traced(program: Any) -> bool:
    """Whether JAX does it where nothing is known of the operands but shapes and dtypes."""
    try:
        run_dense(program, f=jax.jit(function_of(program)))
    except Exception:  # noqa: BLE001 - it does not
        return False
    return True


from . import partly as partly  # noqa: E402  (it needs what is above)
