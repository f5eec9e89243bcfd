"""One function, on arrays and on values, in several ways."""

import contextlib
import functools
import random
import traceback
import zlib

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite

from .forms import FORMS


# What is compared besides the results of a function.
WAYS = ("plain", "plain", "jit", "vmap", "jvp", "vjp")


class Differs(Exception):
    """A function gives other results on values than on arrays."""


class Checker:
    """The checks of one test. Its random numbers depend on the name of the test only."""

    def __init__(self, name, draws, only=None, lenient=False, abstract=False):
        self._random = random.Random(zlib.crc32(name.encode()))
        self._draws = draws
        self._lenient = lenient
        self._run = _traced if abstract else _run
        self._forms = only or list(FORMS)
        self._busy = False
        self._seen = []
        self.problems = []
        self.count = 0

    def __call__(self, fn, args, kwargs, same):
        """Run ``fn`` on values as often as is drawn; ``same(x, y)`` compares two arrays."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        # Numbers become arrays too, as they do when the test calls `jax.jit`.
        leaves = [jnp.asarray(x) if type(x) in (int, float, complex) else x for x in leaves]
        places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
        if self._busy or not places or len(self._seen) > 3 or fn in self._seen:
            return
        self._busy = True
        self._seen.append(fn)
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_busy", False)
            if self._lenient:
                stack.enter_context(jax.numpy_rank_promotion("allow"))
                stack.enter_context(jax.numpy_dtype_promotion("standard"))
            arrays = [jnp.asarray(leaves[i]) for i in places]
            program = _Program(fn, leaves, treedef, places)
            wanted = self.count + self._draws
            for _ in range(3 * self._draws):  # not all that is drawn can be run
                if self.count < wanted:
                    self._check(program, arrays, same)

    def _check(self, program, arrays, same):
        names = self._drawn(arrays)
        way = self._random.choice(WAYS)
        if set(names) == {"array"}:
            return
        described = f"{way} on " + ", ".join(
            f"{name} {jax.typeof(x).str_short()}"
            for name, x in zip(names, arrays, strict=True)
        )
        try:
            expected = self._run(way, program.on_arrays, arrays)
        except Exception:  # noqa: BLE001 - a function that JAX doesn't run this way either
            return
        self.count += 1
        on_values = lambda *xs: program.on_values(names, xs)
        try:
            got = self._run(way, on_values, arrays)
            compare(got, expected, same, weak=way == "plain")
        except Exception as error:  # noqa: BLE001 - whatever it is, JAX runs it
            if self._run is _run and _run_alike(way, program, arrays, names, same):
                return
            self.problems.append(
                f"{described}\n{_shown(error)}\n{program.jaxpr(arrays)[:2000]}"
            )

    def _drawn(self, arrays):
        """The form of each array: one form for all or for one of them, or any forms."""
        possible = [self._possible(x) for x in arrays]
        kind = self._random.choice(["all", "one", "any"])
        if kind == "any":
            return [self._random.choice(["array", *names]) for names in possible]
        chosen = self._random.randrange(len(arrays))
        form = self._random.choice(possible[chosen] or ["array"])
        return [
            form if (i == chosen or kind == "all") and form in names else "array"
            for i, names in enumerate(possible)
        ]

    def _possible(self, x):
        is_finite = not jnp.issubdtype(x.dtype, jnp.inexact) or bool(jnp.isfinite(x).all())
        forms = [(name, FORMS[name]) for name in self._forms]
        return [
            name
            for name, f in forms
            if (f.any_number or is_finite) and (f.weak or not x.weak_type) and f.of(x)
        ]


class _Program:
    """A function of the arrays among some arguments; the others are as they are."""

    def __init__(self, fn, leaves, treedef, places):
        self._fn, self._leaves, self._treedef, self._places = fn, leaves, treedef, places

    def _call(self, fn, replaced):
        leaves = list(self._leaves)
        for i, x in zip(self._places, replaced, strict=True):
            leaves[i] = x
        args, kwargs = jax.tree.unflatten(self._treedef, leaves)
        return fn(*args, **kwargs)

    def on_arrays(self, *arrays):
        return self._call(self._fn, arrays)

    def on_values(self, names, arrays):
        made = [
            x if name == "array" else FORMS[name].make(x)
            for name, x in zip(names, arrays, strict=True)
        ]
        on_values = jaxrewrite.transform(self._fn, materialise="allow")
        return jaxrewrite.materialise(self._call(on_values, made))

    def jaxpr(self, arrays):
        try:
            return str(jax.make_jaxpr(self.on_arrays)(*arrays))
        except Exception as error:  # noqa: BLE001 - it is only shown
            return f"({type(error).__name__} where a jaxpr is made)"


def _run_alike(way, program, arrays, names, same):
    """Whether JAX does the same where it stages the function, as `transform` does."""
    try:
        expected = _run(way, jax.jit(program.on_arrays), arrays)
    except Exception:  # noqa: BLE001 - a function of concrete arrays only
        return True
    try:
        on_values = lambda *xs: program.on_values(names, xs)
        compare(_run(way, on_values, arrays), expected, same, weak=way == "plain")
    except Exception:  # noqa: BLE001 - that it differs is known already
        return False
    return True


def _run(way, fn, arrays):
    if way == "plain":
        return fn(*arrays)
    # Jitted, since JAX compiles each primitive by itself otherwise.
    if way == "jit":
        return jax.jit(fn)(*arrays)
    if way == "vmap":
        return jax.jit(jax.vmap(fn))(*[jnp.stack([x, x]) for x in arrays])
    return jax.jit(functools.partial(_derivative, way, fn))(arrays)


def _traced(way, fn, arrays):
    """The shapes and dtypes of what `_run` gives. Nothing is compiled."""
    return jax.eval_shape(lambda *xs: _run(way, fn, xs), *arrays)


def _derivative(way, fn, arrays):
    """The function's derivative with respect to the inexact ones of its arguments."""
    places = [i for i, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.inexact)]
    if not places:
        raise TypeError("there is nothing to differentiate")

    def of_inexact(*xs):
        every = list(arrays)
        for i, x in zip(places, xs, strict=True):
            every[i] = x
        results = jax.tree.leaves(fn(*every))
        return [y for y in results if jnp.issubdtype(jnp.result_type(y), jnp.inexact)]

    primals = [arrays[i] for i in places]
    if way == "jvp":
        return jax.jvp(of_inexact, primals, [_numbers(x) for x in primals])
    results, pull = jax.vjp(of_inexact, *primals)
    return results, pull([_numbers(y) for y in results])


def _numbers(x):
    """Some numbers of an array's shape and dtype."""
    n = np.arange(np.size(x)).reshape(np.shape(x))
    return jnp.asarray(0.5 + n % 7 / 8).astype(x.dtype)


def compare(got, expected, same, *, weak=True):
    """Raise unless two pytrees have the same structure, and arrays of the same type.

    Numbers are compared by ``same``.
    """
    flat, treedef = jax.tree.flatten(got)
    wanted, expected_treedef = jax.tree.flatten(expected)
    if treedef != expected_treedef:
        raise Differs(f"structure {treedef}, not {expected_treedef}")
    for x, y in zip(flat, wanted, strict=True):
        if not _is_array(y):
            if _is_array(x) or x != y:
                raise Differs(f"{x!r}, not {y!r}")
            continue
        is_traced = isinstance(y, jax.ShapeDtypeStruct)
        if not is_traced:
            x, y = (z if isinstance(z, jax.Array) else jnp.asarray(z) for z in (x, y))
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise Differs(f"{x.dtype}{x.shape}, not {y.dtype}{y.shape}")
        if weak and x.weak_type != y.weak_type:
            raise Differs(f"weak type {x.weak_type}, not {y.weak_type}")
        if is_traced:
            continue
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        same(x, y)


def _is_array(x):
    if isinstance(x, jax.ShapeDtypeStruct):
        return True
    if isinstance(x, jax.Array):
        return not isinstance(x, jax.core.Tracer)
    return isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind not in "OSUMm"


def _shown(error):
    """The error, where it comes from, and its notes, in a few lines."""
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    frames = [
        f"  {frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "jaxrewrite" in frame.filename
    ]
    return "\n".join([*lines[:40], *frames[-6:]])
