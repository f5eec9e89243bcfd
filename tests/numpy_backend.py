"""The small programs of tests are run by NumPy.

XLA takes a thousand times as long to compile such a program as it takes to run it. `install` lets
`sweep.numpy_run` evaluate what JAX would compile: each operation outside of `jax.jit`, and each
program of `jax.jit` while it is small and has run a few times only. JAX traces it and checks its
types as always, and lowers it to StableHLO where an equation is of a sort that it has not lowered
yet, so all but the machine code is tested.

Left to XLA are programs with effects, donated operands, shardings or devices of their own, keys
but of the default generator, and primitives that NumPy has not.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import core, pjit  # JAX has no public hook for what runs a program
from jax._src.array import ArrayImpl
from jax._src.interpreters import mlir, pxla
from jax._src.random.prng import PRNGKeyArray
from jax._src.sharding_impls import UNSPECIFIED, UnspecifiedValue
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import SingleDeviceSharding
from sweep import numpy_run

from jaxrewrite import _compat


# An array of more entries is left to XLA.
_MOST_ENTRIES = 300_000

# Compiling takes as long as NumPy takes for so many equations of a program, and more where it
# is long: for each of its equations, so many.
_MOST_EQUATIONS = 2000
_MOST_PER_EQUATION = 20

# By rules of their own, or not to be run.
_LEFT_TO_XLA = {"call_hi_primitive", "custom_lin"}

# JAX runs these by functions of its own, whose operations are NumPy's again.
_COMPOSED = {
    *("bcoo_fromdense", "bcoo_todense", "bcoo_extract", "bcoo_sort_indices"),
    *("bcoo_sum_duplicates", "bcsr_fromdense", "bcsr_todense", "bcsr_extract"),
}

# Rare, and quick to compile; the rest of a program is none the less NumPy's.
_ONE_BY_ONE = {
    *("svd", "qr", "geqrf", "householder_product", "eigh", "eig", "tridiagonal_solve"),
    *("bcoo_dot_general", "bcsr_dot_general"),
    *("integer_dot", "rows_dot", "conv_general_dilated"),
    *("top_k", "threefry2x32", "lgamma", "digamma", "polygamma"),
    *("igamma_grad_a", "polynomial", "reduce_precision", "reduce_window_sum"),
    *("eq_to", "le_to", "lt_to"),
}

# How many parts of the tests want XLA at the moment, in all threads.
_compiling = 0
_counting = threading.Lock()


@contextlib.contextmanager
def compiled():
    """XLA runs everything meanwhile."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _compiling
    with _counting:
        _compiling += change


def install() -> None:
    process, call = core.EvalTrace.process_primitive, pjit._pjit_call_impl_python

    def process_primitive(self, primitive, args, params, /):
        if _is_known(primitive.name, params) and _are_plain(args):
            with contextlib.suppress(numpy_run.NotStaged):
                return _one_primitive(primitive, params, args)
        return process(self, primitive, args, params)

    def pjit_call(*args, jaxpr, **params):
        if _is_placed_by_jax(params) and _are_plain(args) and _are_plain(_consts(jaxpr)):
            known = _known(jaxpr)
            if known.may_run():
                _lower_what_is_new(jaxpr, params)
                with contextlib.suppress(numpy_run.NotStaged):
                    return _one_program(jaxpr, args), None, None, []
        return call(*args, jaxpr=jaxpr, **params)

    by_jax = numpy_run._by_jax

    def by_jax_alone(eqn, *operands):
        """What NumPy has for most operands only, it is not asked about once more."""
        is_known = eqn.primitive.name in numpy_run.TABLE
        with compiled() if is_known else contextlib.nullcontext():
            return by_jax(eqn, *operands)

    numpy_run._by_jax = by_jax_alone
    core.EvalTrace.process_primitive = process_primitive
    pjit._pjit_call_impl_python = pjit_call


_lowered: set[Any] = set()


def _lower_what_is_new(closed: Any, params: Any) -> None:
    """Lower the equations of a program that have a sort which no program has had.

    JAX lowers each equation for itself, by its primitive and the types of its operands.
    """
    if _known(closed).lowered:
        return
    new = _New()
    new.add(closed)
    if new.eqns:
        _lower(new.eqns, getattr(closed, "jaxpr", closed), params)
    _lowered.update(new.sorts)
    for known in new.programs:
        known.lowered = True


class _New:
    """Equations of new sorts, one of each, and all sorts and programs that they come from."""

    def __init__(self) -> None:
        self.eqns: list[Any] = []
        self.sorts: set[Any] = set()
        self.programs: list[_Known] = []

    def add(self, closed: Any) -> None:
        """Add those of a program; a program under ``jax.jit`` in it is lowered by itself, too."""
        known = _known(closed)
        if known.lowered or known in self.programs:
            return
        self.programs.append(known)
        for eqn in closed.eqns:
            is_jit = eqn.primitive.name == "jit"
            sorts = {("jit", _given(eqn))} if is_jit else set(_sorts(eqn))
            if not all(sort in _lowered or sort in self.sorts for sort in sorts):
                self.eqns.append(eqn)
                self.sorts |= sorts
            if is_jit:
                self.add(eqn.params["jaxpr"])


def _lower(eqns: list[Any], jaxpr: Any, params: Any) -> None:
    """Lower a program of these equations, each of which has operands of its own."""
    eqns = list(map(_by_itself, eqns))
    results = [v for eqn in eqns for v in eqn.outvars if not isinstance(v, core.DropVar)]
    operands = [v for eqn in eqns for v in eqn.invars if not isinstance(v, core.Literal)]
    program = _compat.new_jaxpr(operands, results, eqns, jaxpr.debug_info, jaxpr.is_high)
    arrays = [_zeros(v.aval) for v in operands]
    n, m = len(operands), len(results)
    for_all = {
        **{"in_shardings": (UNSPECIFIED,) * n, "out_shardings": (UNSPECIFIED,) * m},
        **{"in_layouts": (None,) * n, "out_layouts": (None,) * m},
        "donated_invars": (False,) * n,
    }
    pjit._resolve_and_lower(
        [pjit.convert_to_metaty(x) for x in arrays],
        jaxpr=_compat.close_jaxpr(program),
        **params | for_all,
        lowering_platforms=None,
        lowering_parameters=mlir.LoweringParameters(),
        pgle_profiler=None,
    )


def _by_itself(eqn: Any) -> Any:
    """The equation on new variables: a program and one within it may have the same."""
    new = lambda v: v if isinstance(v, (core.Literal, core.DropVar)) else core.Var(v.aval)
    return eqn.replace(
        invars=list(map(new, eqn.invars)), outvars=list(map(new, eqn.outvars))
    )


def _zeros(aval: Any) -> Any:
    if not numpy_run.is_key(aval):
        return np.zeros(aval.shape, aval.dtype)
    return PRNGKeyArray(aval.dtype._impl, np.zeros((*aval.shape, 2), np.uint32))


def _sorts(eqn: Any) -> Iterator[Any]:
    types = tuple((v.aval.dtype, v.aval.ndim) for v in (*eqn.invars, *eqn.outvars))
    yield eqn.primitive, types, _given(eqn)
    for inner in _programs_in(eqn.params):
        for each in inner.eqns:
            yield from _sorts(each)


def _given(eqn: Any) -> Any:
    return frozenset(k for k, v in eqn.params.items() if not _is_empty(v))


def _is_empty(param: Any) -> bool:
    return param is None or isinstance(param, (bool, tuple)) and not param


# --- which programs -----------------------------------------------------------------------------


class _Known:
    """What is known about a jaxpr: whether NumPy can run it, and how often it may."""

    def __init__(self, closed: Any) -> None:
        jaxpr = getattr(closed, "jaxpr", closed)
        self.lowered = False
        self.is_evaluable = _is_evaluable(closed)
        self.is_of_one = (
            len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name in _ONE_BY_ONE
        )
        # Equations, of which those of a loop count once, or for each turn.
        self.n, self.per_call = len(jaxpr.eqns), len(jaxpr.eqns)
        for eqn in jaxpr.eqns:
            inner = list(map(_known, _programs_in(eqn.params)))
            self.n += sum(known.n for known in inner)
            turns = eqn.params.get("length", 1)
            self.per_call += turns * sum(known.per_call for known in inner)
        self.left = _MOST_EQUATIONS + _MOST_PER_EQUATION * self.n

    def may_run(self) -> bool:
        """How JAX runs one primitive, NumPy leaves to it."""
        if not self.is_evaluable or self.is_of_one or self.left < self.per_call:
            return False
        self.left -= self.per_call
        return True


_all_known: Any = weakref.WeakKeyDictionary()


def _known(closed: Any) -> _Known:
    try:
        return _all_known[closed]
    except KeyError:
        return _all_known.setdefault(closed, _Known(closed))


def _consts(closed: Any) -> Any:
    return getattr(closed, "consts", ())


def _is_evaluable(closed: Any) -> bool:
    """Whether NumPy knows each equation, and all arrays are small."""
    jaxpr = getattr(closed, "jaxpr", closed)
    if jaxpr.effects or not _are_plain(_consts(closed)):
        return False
    variables = [*jaxpr.invars, *jaxpr.constvars]
    for eqn in jaxpr.eqns:
        if not _is_left_whole(eqn) and not _is_known(eqn.primitive.name, eqn.params):
            return False
        if not _is_known_of_keys(eqn.primitive.name, (*eqn.invars, *eqn.outvars)):
            return False
        if not all(known.is_evaluable for known in map(_known, _programs_in(eqn.params))):
            return False
        variables += eqn.outvars
    return all(_is_plain_aval(v.aval) for v in variables)


def _is_left_whole(eqn: Any) -> bool:
    """Whether JAX runs an equation by itself within a program that NumPy runs."""
    if eqn.primitive.name == "device_put":  # not to a device
        return all(device is None for device in eqn.params["devices"])
    return eqn.primitive.name in _ONE_BY_ONE or eqn.primitive.name in _COMPOSED


def _programs_in(params: Any) -> list[Any]:
    found = []
    for x in params.values():
        for part in x if isinstance(x, tuple) else (x,):
            if isinstance(part, (ClosedJaxpr, Jaxpr)):
                found.append(part)
    return found


def _is_known(name: str, params: Any) -> bool:
    return (
        not _compiling
        and name in numpy_run.TABLE
        and name not in _LEFT_TO_XLA
        and _is_anywhere(params.get("sharding"))
        and _is_anywhere(params.get("out_sharding"))
        and (name != "jit" or _is_placed_by_jax(params))
    )


def _is_known_of_keys(name: str, atoms: Any) -> bool:
    """Whether NumPy has it, where there are keys among the operands or results."""
    if (
        name.startswith("random_")
        or name in numpy_run.MOVES_KEYS
        or name in ("jit", "pjit")
    ):
        return True
    return not any(map(_is_extended, atoms))


def _is_extended(atom: Any) -> bool:
    return jax.dtypes.issubdtype(atom.aval.dtype, jax.dtypes.extended)


def _is_anywhere(sharding: Any) -> bool:
    """Whether it says nothing; that of a cotangent in 16 bits is on a mesh without axes."""
    return sharding is None or (hasattr(sharding, "mesh") and sharding.mesh.empty)


def _is_placed_by_jax(params: Any) -> bool:
    return (
        not _compiling
        and not any(params["donated_invars"])
        and all(
            isinstance(x, UnspecifiedValue)
            for x in (*params["in_shardings"], *params["out_shardings"])
        )
    )


def _are_plain(args: Any) -> bool:
    """Whether arrays are small, and where JAX puts them by itself."""
    if jax.config.jax_default_device is not None or jax.config.jax_debug_nans:
        return False
    return all(map(_is_plain, args))


def _is_plain(x: Any) -> bool:
    if isinstance(x, PRNGKeyArray):
        return numpy_run.is_key(x) and _is_plain(x._base_array)
    if isinstance(x, ArrayImpl):
        return (
            not x._committed
            and x.size <= _MOST_ENTRIES
            and isinstance(x.sharding, SingleDeviceSharding)
            and not x.is_deleted()
        )
    if isinstance(x, np.ndarray):
        return x.size <= _MOST_ENTRIES
    return isinstance(x, (bool, int, float, complex, np.generic))


def _is_plain_aval(aval: Any) -> bool:
    return (
        isinstance(aval, core.ShapedArray)
        and (
            numpy_run.is_key(aval)
            or not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
        )
        and aval.sharding.mesh.empty
        and aval.size <= _MOST_ENTRIES
    )


# --- running them -------------------------------------------------------------------------------


@contextlib.contextmanager
def _apart():
    """What NumPy has not, JAX runs meanwhile."""
    with core.eval_context(), np.errstate(all="ignore"):
        yield


def _one_program(jaxpr: Any, args: Any) -> list[Any]:
    operands = list(map(_numbers, args, jaxpr.in_avals))
    with _apart():
        return _arrays(numpy_run.evaluate(jaxpr, operands), jaxpr.out_avals)


def _numbers(x: Any, aval: Any) -> np.ndarray:
    """An operand as `numpy_run` has it."""
    return np.asarray(x._base_array if isinstance(x, PRNGKeyArray) else x, _physical(aval))


def _physical(aval: Any) -> Any:
    return np.uint32 if numpy_run.is_key(aval) else aval.dtype


class _Equation:
    """One equation, as `numpy_run` reads it."""

    def __init__(self, primitive: Any, params: Any, ins: Any, outs: Any) -> None:
        self.primitive, self.params = primitive, params
        self.invars, self.outvars = list(map(_Variable, ins)), list(map(_Variable, outs))


class _Variable:
    def __init__(self, aval: Any) -> None:
        self.aval = aval


_known_results: dict[Any, list[Any]] = {}


def _results(primitive: Any, avals: Any, params: Any) -> Any:
    try:
        key = primitive, avals, tuple(sorted(params.items())), jax.config.jax_enable_x64
        return _known_results[key]
    except (KeyError, TypeError) as error:
        out, _ = primitive.abstract_eval(*avals, **params)
        outs = list(out) if primitive.multiple_results else [out]
        if isinstance(error, KeyError):
            _known_results[key] = outs
        return outs


def _one_primitive(primitive: Any, params: Any, args: Any) -> Any:
    bodies = _programs_in(params)
    if bodies:
        known = list(map(_known, bodies))
        cost = params.get("length", 1) * sum(of_body.per_call for of_body in known)
        if cost > _MOST_EQUATIONS or not all(of_body.is_evaluable for of_body in known):
            raise numpy_run.NotStaged
    avals = tuple(map(core.typeof, args))
    outs = _results(primitive, avals, params)
    eqn = _Equation(primitive, params, avals, outs)
    if not all(map(_is_plain_aval, outs)):
        raise numpy_run.NotStaged
    if not _is_known_of_keys(primitive.name, (*eqn.invars, *eqn.outvars)):
        raise numpy_run.NotStaged
    with _apart():
        operands = list(map(_numbers, args, avals))
        results = numpy_run.TABLE[primitive.name](eqn, *operands)
    if not isinstance(results, (list, tuple)):
        results = [results]
    arrays = _arrays(results, outs)
    return arrays if primitive.multiple_results else arrays[0]


def _arrays(results: Any, avals: Any) -> list[Any]:
    device = jax.local_devices()[0]
    sharding = SingleDeviceSharding(device)

    def array(x: Any, aval: Any) -> Any:
        if aval.dtype == jax.dtypes.float0:
            return np.zeros(aval.shape, aval.dtype)
        one = [np.array(numpy_run.like(x, aval))]
        physical = core.physical_aval(aval)
        result = pxla.batched_device_put(physical, sharding, one, [device], committed=False)
        return PRNGKeyArray(aval.dtype._impl, result) if numpy_run.is_key(aval) else result

    return [array(*of_one) for of_one in zip(results, avals, strict=True)]
