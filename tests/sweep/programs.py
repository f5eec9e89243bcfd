"""Random programs: a few steps, each an expression of the results of earlier steps.

An operation is a function of a `Builder` that returns an expression, or raises `Refused` if
it does not fit. Each step runs on the dense arrays when it is added. So its results are known,
and JAX itself can run it.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
import jaxrewrite.patterns

from . import numpy_run, strangers
from .names import HEADER, NAMES
from .oracle import dense, evaluated
from .values import FLOATS, INEXACT, TYPES, Refused, Source, value


SIZE_LIMIT = 300


class Var(NamedTuple):
    text: str
    array: Any

    @property
    def shape(self):
        return self.array.shape

    @property
    def ndim(self):
        return self.array.ndim

    @property
    def dtype(self):
        return str(self.array.dtype)

    @property
    def kind(self):
        dtype = self.array.dtype
        for kind, of in (
            ("f", jnp.floating),
            ("c", jnp.complexfloating),
            ("i", jnp.integer),
            ("b", jnp.bool_),
        ):
            if jnp.issubdtype(dtype, of):
                return kind
        return "?"


@dataclasses.dataclass(frozen=True)
class Program:
    """``operands`` and ``steps`` are expressions; operand i is called ``v{i}``, step i ``t{i}``."""

    operands: tuple[str, ...]
    steps: tuple[str, ...]
    result: str
    mode: str = "eager"
    policy: str = "allow"
    x64: bool = False
    table: str = ""  # of patterns that are in force

    @property
    def rules(self) -> Any:
        return getattr(jaxrewrite.patterns, self.table) if self.table else None

    def function(self) -> str:
        names = ", ".join(f"v{i}" for i in range(len(self.operands)))
        lines = [f"def f({names}):"]
        lines += [f"    t{i} = {step}" for i, step in enumerate(self.steps)]
        return "\n".join([*lines, f"    return {self.result}", ""])

    def needed(self) -> Program:
        """The same without what its result does not need, which may be no program of wider numbers."""
        names, steps = set(re.findall(r"t\d+", self.result)), list(self.steps)
        for i in reversed(range(len(steps))):
            if f"t{i}" in names:
                names.update(re.findall(r"t\d+", steps[i]))
            else:
                steps[i] = "None"
        return dataclasses.replace(self, steps=tuple(steps))

    def wider(self) -> Program:
        """The same, where what the steps write is in double precision, too."""
        return dataclasses.replace(self, steps=tuple(map(_wider, self.steps)))

    def source(self) -> str:
        """Self-contained."""
        values = "".join(f"{text}, " for text in self.operands)
        make = f"def operands():\n    return ({values.strip()})\n"
        config = "jax.config.update('jax_enable_x64', True)\n" if self.x64 else ""
        policy = repr(self.policy)
        if self.table:
            policy += f", rules=jaxrewrite.patterns.{self.table}"
        run = MODES[self.mode].replace("POLICY", policy)
        own = strangers.SOURCE if re.search(r"\bOwn", make) else ""
        return "\n".join([HEADER, own, config, make, self.function(), run])

    def short(self) -> str:
        """Without what is the same in each."""
        values = ", ".join(f"v{i} = {text}" for i, text in enumerate(self.operands))
        x64 = ", x64" if self.x64 else ""
        table = f", patterns.{self.table}" if self.table else ""
        return f"# {self.mode}, {self.policy}{x64}{table}\n{values}\n{self.function()}"


def _wider(step: str) -> str:
    made = lambda m: m[0] if "dtype" in m[0] else f"{m[0][:-1]}, dtype='float64')"
    step = re.sub(r"\bu\([^()]*\)", made, step)
    return step.replace("float32", "float64").replace("complex64", "complex128")


_LEAVES = """
from sweep.oracle import dense, floating, total
leaves, filled = floating(operands())
"""

POLICIES = ("allow", "warn", "forbid", "cheapest")

MODES = {
    "eager": """\
vs = operands()
got = jaxrewrite.materialise(jaxrewrite.transform(f, materialise=POLICY)(*vs))
print(got); print(f(*jaxrewrite.materialise(vs)))
""",
    "jit": """\
vs = operands()
got = jax.jit(lambda *vs: jaxrewrite.materialise(jaxrewrite.transform(f, materialise=POLICY)(*vs)))(*vs)
print(got); print(f(*jaxrewrite.materialise(vs)))
""",
    "vmap": """\
vs = operands()  # and the same twice, one along a new axis of each leaf
fn = lambda *vs: jaxrewrite.materialise(jaxrewrite.transform(f, materialise=POLICY)(*vs))
print(jax.vmap(fn)(*jax.tree.map(lambda x: jnp.stack([x, x]), vs)))
print(f(*jaxrewrite.materialise(vs)))
""",
    "elements": """\
vs = operands()  # and the same twice, as the elements of a `Batched`
fn = lambda *vs: jaxrewrite.materialise(jaxrewrite.transform(f, materialise=POLICY)(*vs))
twice = lambda v: batched([v, v]) if isinstance(v, jaxrewrite.Value) else jnp.stack([v, v])
print(jax.vmap(fn)(*map(twice, vs)))
print(f(*jaxrewrite.materialise(vs)))
""",
    "grad": _LEAVES
    + """\
got = lambda xs: total(jaxrewrite.transform(f, materialise=POLICY)(*filled(xs)))
print(jax.grad(got)(leaves)); print(jax.grad(lambda xs: total(f(*map(dense, filled(xs)))))(leaves))
""",
    "jvp": _LEAVES
    + """\
got = lambda xs: dense(jaxrewrite.transform(f, materialise=POLICY)(*filled(xs)))
ts = [jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype) for x in leaves]
print(jax.jvp(got, (leaves,), (ts,))); print(jax.jvp(lambda xs: f(*map(dense, filled(xs))), (leaves,), (ts,)))
""",
    "masked": """\
vs = operands()  # what is under a mask must not matter
print(jaxrewrite.transform(f, materialise=POLICY)(*vs).filled(-9))
""",
    "slope": """\
from sweep.partly import slopes
for garbage in (0, 1, 2):  # what is under a mask has no gradient, and must not matter for others
    print(slopes(jaxrewrite.transform(f, materialise=POLICY), operands(), garbage=garbage))
""",
    "hidden": "print(jaxrewrite.transform(f, materialise=POLICY)(*operands()))\n",
    "bounds": """\
vs = operands()
bounds = jaxrewrite.transform(f, materialise=POLICY)(*vs); print(bounds.lower, bounds.upper)
inside = lambda v, t: v.lower + t * (v.upper - v.lower) if isinstance(v, Interval) else v
print([f(*(inside(v, t) for v in vs)) for t in (0, 0.5, 1)])
""",
    "jacfwd": _LEAVES
    + """\
got = lambda xs: total(jaxrewrite.transform(f, materialise=POLICY)(*filled(xs)))
print(jax.jacfwd(got)(leaves)); print(jax.jacfwd(lambda xs: total(f(*map(dense, filled(xs)))))(leaves))
""",
}


class Op(NamedTuple):
    make: Callable[..., str]
    weight: float
    safe: bool  # what is not finite stays where it is, as in the dense program
    group: str


OPS: list[Op] = []


def op(group: str, weight: float = 1.0, safe: bool = False):
    def add(make):
        OPS.append(Op(make, weight, safe, group))
        return make

    return add


class Builder:
    """A program, as far as it is made."""

    def __init__(self, source: Source, dtype: str) -> None:
        self.s = source
        self.dtype = dtype
        self.operands: list[str] = []
        self.steps: list[str] = []
        self.pool: list[Var] = []
        self.env: dict[str, Any] = {}
        self.avals: dict[str, Any] = {}
        self.wanted: list[tuple[tuple[int, ...], str]] = []
        self.tainted = False
        self.differentiated = False
        self.values_left = 1
        self.other_type: tuple[str, ...] | None = None

    # --- operands -----------------------------------------------------------------------

    def operand(self, text: str) -> Var:
        name = f"v{len(self.operands)}"
        value = evaluated(text, jax.config.jax_enable_x64)
        self.env[name], self.avals[name] = ran(lambda: dense(value))
        array = self.env[name]
        self.operands.append(text)
        self.pool.append(Var(name, array))
        return self.pool[-1]

    def pick(self, *conditions: Callable[[Var], bool]) -> Var:
        """A variable, often the last one."""
        fit = [v for v in self.pool if all(condition(v) for condition in conditions)]
        if not fit:
            raise Refused
        if self.s.chance(0.7):
            return fit[-1]
        return self.s.choice(fit)

    def array(self, shape: tuple[int, ...], dtype: str) -> str:
        """What stands for an array until the expression is chosen; see `_array`."""
        self.wanted.append((tuple(shape), dtype))
        return f"§{len(self.wanted) - 1}§"

    def _array(self, shape: tuple[int, ...], dtype: str) -> str:
        """Something of this shape: a value, an array that is an argument, or a constant."""
        fit = [v for v in self.pool if v.shape == tuple(shape) and v.dtype == dtype]
        if fit and self.s.chance(0.35):
            return self.s.choice(fit).text
        # Of two axes or more, a value may be there.
        if len(shape) in (2, 3) and self.values_left and self.s.chance(0.6):
            self.values_left -= 1
            within = self.other_type or (self.s.choice(TYPES),)
            try:
                *batch, n, m = shape
                text = value(self.s, within[0], dtype, n, m, tuple(batch), within[1:])
                return self.operand(text).text
            except Refused:
                pass
        if self.s.chance(0.5):
            return self.operand(self.s.u(*shape, dtype=dtype)).text
        return self.s.u(*shape, dtype=dtype)

    def literal(self, v: Var) -> str:
        options = {
            "f": ("2.0", "0.5", "-1", "3", "0.0", "1", "-0.75", "True"),
            "c": ("2.0", "1j", "-1", "0.5", "(1+1j)"),
            "i": ("2", "-1", "3", "0", "1", "True"),
            "b": ("True", "False"),
        }
        return self.s.choice(options[v.kind])

    # --- steps ----------------------------------------------------------------------------

    def run(self, text: str) -> tuple[Any, Any]:
        """The result of an expression, and what `ran` says of it."""
        used = [name for name in self.env if re.search(rf"\b{name}\b", text)]

        def step(*arrays: Any) -> Any:
            return eval(text, {**NAMES, **dict(zip(used, arrays, strict=True))})

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ran(
                step,
                [self.avals[name] for name in used],
                [self.env[name] for name in used],
            )

    def add(self, operation: Op) -> None:
        before = len(self.operands), len(self.pool), self.values_left
        text = ""
        try:
            self.wanted.clear()
            text = operation.make(self)
            for i in dict.fromkeys(map(int, re.findall("§(\\d+)§", text))):
                text = text.replace(f"§{i}§", self._array(*self.wanted[i]))
            result, avals = self.run(text)
            leaves = jax.tree.leaves(result)
            if not leaves or any(
                not hasattr(x, "shape") or x.size > SIZE_LIMIT or x.ndim > 5 for x in leaves
            ):
                raise Refused
        except Exception as error:  # noqa: BLE001 - JAX refuses it, in whatever way
            if not isinstance(error, Refused):
                REJECTED[operation.make.__name__] = (text, error)
            del self.operands[before[0] :], self.pool[before[1] :]
            self.values_left = before[2]
            raise Refused from error
        name = f"t{len(self.steps)}"
        self._taint(operation, text, leaves)
        self.steps.append(text)
        self.env[name], self.avals[name] = result, avals
        if isinstance(result, (tuple, list)):
            for i, x in enumerate(result):
                if hasattr(x, "shape"):
                    self.pool.append(Var(f"{name}[{i}]", x))
        elif hasattr(result, "shape"):
            self.pool.append(Var(name, result))
        else:
            raise Refused

    def _taint(self, operation: Op, text: str, results: list[Any]) -> None:
        if operation.safe or self.tainted:
            return
        used = set(re.findall(r"\b[vt]\d+\b", text))
        arrays = [*results, *(self.env[name] for name in used if name in self.env)]
        self.tainted = not all(map(finite, jax.tree.leaves(arrays)))


REJECTED: dict[str, Any] = {}
"""The last expression of each operation that JAX refused, to look at."""


def finite(x: Any) -> bool:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return True
    return bool(np.isfinite(np.asarray(x).astype(np.complex128)).all())


def ran(fn: Callable[..., Any], avals: Any = (), arrays: Any = ()) -> tuple[Any, Any]:
    """The results of a function, and their shapes, dtypes and weak types."""
    try:
        call = numpy_run.staged(fn, *avals)
        return call(*arrays), call.avals
    except numpy_run.NotStaged:
        arrays = jax.tree.map(jnp.asarray, arrays)
        result = fn(*arrays)
        return result, jax.tree.map(jax.typeof, result)


# --- a whole program ----------------------------------------------------------------------------

SHAPES = (
    *[(4, 4)] * 10,
    *[(4, 6)] * 4,
    *[(6, 4)] * 3,
    *[(1, 4), (4, 1), (1, 1), (0, 4), (4, 0)],
)
DTYPES = (
    *["float32"] * 14,
    *["float64"] * 3,
    *["complex64"] * 2,
    *["int32", "int32", "bfloat16", "float16", "bool"],
)
TABLES = ("stable", "stable", "linalg", "attention", "loops", "structured")
MODE_WEIGHTS = {
    **{"eager": 53, "jit": 3, "vmap": 7, "elements": 4},
    **{"grad": 18, "jvp": 12, "jacfwd": 3},
}


ANNOTATIONS = (
    *("Tagged", "Named", "Masked", "Unitful", "Interval"),
    *("OwnAround", "OwnDefault", "OwnWithin"),
)


def chosen_types(seed: int, s: Source) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Types of the first operand, outer first, and of the second: every pair has its turn."""
    names = list(TYPES)
    holders = [name for name in names if TYPES[name].holds]
    turn, which = divmod(seed, 5)
    if which == 0:
        return (names[turn % len(names)],), None
    if which == 1:
        if turn % 5 == 4:
            return (s.choice(("Threefry", "Missing", "Wide")),), None
        outer, inner = divmod(turn, len(names))
        return (holders[outer % len(holders)], names[inner]), None
    if which == 2:
        left, right = divmod(turn, len(names))
        return (names[left % len(names)],), (names[right],)
    if which == 4:
        outer, inner = divmod(turn, len(names))
        around = [s.choice(ANNOTATIONS) for _ in range(s.choice((1, 1, 2)))]
        other = (s.choice(ANNOTATIONS), s.choice((*ANNOTATIONS, *names)))
        types = (ANNOTATIONS[outer % len(ANNOTATIONS)], *around, names[inner])
        return types, other if s.chance(0.4) else None
    types = [s.choice(holders), s.choice(holders), s.choice(names)]
    return tuple(types[s.choice((0, 1)) :]), (s.choice(holders), s.choice(names))


def program(seed: int) -> tuple[Program, Builder] | None:
    """The program of a seed; ``None`` where its types have no value of the dtype."""
    s = Source(f"program {seed}")
    types, other = chosen_types(seed, s)
    for _ in range(6):
        dtype, shape = s.choice(DTYPES), s.choice(SHAPES)
        x64 = dtype == "float64" or s.chance(0.1)
        batch = s.choice([(), (), (), (), (2,), (3,)])
        with jax.enable_x64(x64):
            try:
                return _program(s, types, other, dtype, shape, batch, x64)
            except Refused:
                continue
    return None


def _threefry(s, dtype, n, m, batch):
    text = f"Threefry.seed({s.seed()})"
    if s.chance(0.4):
        shape = s.choice((2, 3, (2, 3), (1,)))
        text = f"Threefry.of(jax.random.split(jax.random.key({s.seed()}), {shape}))"
    return text, s.choice(("eager", "eager", "jit", "vmap")), {"key"}


def _missing(s, dtype, n, m, batch):
    text = _masked(s, dtype, (*batch, n, m))
    if s.chance(0.4):
        return text, "masked", {"entrywise", "shape"}
    slope = dtype in FLOATS and s.chance(0.5)
    return text, "slope" if slope else "hidden", ANYTHING


def _masked(s, dtype, sizes):
    mask = f"~mask({s.seed()}, {', '.join(map(str, sizes))})"
    return f"Masked({s.u(*sizes, dtype=dtype)}, {mask})"


def _wide(s, dtype, n, m, batch):
    """An interval, at times one that reaches to the ends of its dtype."""
    dtype = s.choice((dtype, dtype, *WIDE))
    if dtype not in WIDE:
        raise Refused
    x = s.u(*batch, n, m, dtype=dtype)
    if dtype == "float64" or s.chance(0.5):
        radius = "1" if dtype in INTEGERS else s.choice(("0.1", "0.5", "2.0"))
    else:
        x = f"at_ends({x})"
        radius = "1" if dtype in INTEGERS else s.choice(("0.5", "1e3", "2e4", "1e38"))
    text = f"Interval(*around({x}, {radius}))"
    return text, "bounds", ANYTHING - {"linalg"}


SPECIAL = {"Threefry": _threefry, "Missing": _missing, "Wide": _wide}
INTEGERS = ("int32", "int8", "uint8")
WIDE = ("float32", "float64", "float16", "bfloat16", *INTEGERS)
ANYTHING = {
    *("contraction", "entrywise", "reduction", "shape", "sort", "gather", "loop"),
    *(
        "branch",
        "call",
        "vmap",
        "custom",
        "rules",
        "derivative",
        "linalg",
        "written",
        "formula",
    ),
}


def _program(s, types, other, dtype, shape, batch, x64):
    s.spoil = dtype in FLOATS and s.chance(0.04)
    b = Builder(s, dtype)
    b.other_type = other
    if types[0] in SPECIAL:
        text, mode, groups = SPECIAL[types[0]](s, dtype, *shape, batch)
        dtype = b.dtype = "float32" if types[0] == "Threefry" else dtype
    else:
        text, mode, groups = value(s, types[0], dtype, *shape, batch, types[1:]), None, None
    b.values_left = 2 if other else int(s.chance(0.4))
    try:
        b.operand(text)
    except Exception as error:  # noqa: BLE001 - a value that its type refuses
        REJECTED[" of ".join(types)] = (None, error)
        raise Refused from error
    s.spoil = False
    if types[0] == "Missing" and s.chance(0.5):
        b.operand(_masked(s, dtype, (*batch, *shape)))
    mode = mode or s.random.choices(list(MODE_WEIGHTS), MODE_WEIGHTS.values())[0]
    if dtype not in INEXACT and mode in ("grad", "jvp", "jacfwd"):
        mode = "eager"
    if dtype == "complex64" and mode in ("grad", "jacfwd"):
        mode = "jvp"
    b.differentiated = mode in ("grad", "jvp", "jacfwd", "slope")
    wanted = s.choice((1, 1, 1, 2, 2, 2, 3, 3, 4))
    if mode in ("masked", "hidden", "slope", "bounds"):
        b.values_left = 0
    weights = [x.weight * (x.group in groups if groups else x.group != "key") for x in OPS]
    for _ in range(wanted + 12):
        operation = s.random.choices(OPS, weights)[0]
        try:
            b.add(operation)
        except Refused:
            continue
        if len(b.steps) == wanted:
            break
    if not b.steps:
        raise Refused
    if "Interval(" in "".join(b.operands):
        mode = "bounds"
    last = f"t{len(b.steps) - 1}"
    others = [f"t{i}" for i in range(len(b.steps) - 1) if s.chance(0.3)]
    result = f"({', '.join([last, *others])})" if others else last
    policy = s.random.choices(POLICIES, [70, 12, 8, 10])[0]
    table = s.choice(TABLES) if s.chance(1 / 3) else ""
    made = Program(tuple(b.operands), tuple(b.steps), result, mode, policy, x64, table)
    return made, b


from . import (  # noqa: E402  (they register theirs)
    custom_rules as custom_rules,
    formulas as formulas,
    keys as keys,
    operations as operations,
    written as written,
)
