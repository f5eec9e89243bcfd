"""`transform`: a function of arrays becomes a function of values."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import sys
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.tree_util import (
    PyTreeDef,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
    treedef_is_leaf,
)

from .. import _compat
from .._compat import ClosedJaxpr, Primitive, Tree
from .._core import hooks
from .._core.avals import no_pytree, rule_children
from .._core.caches import BoundedCache, cached
from .._core.dense import make_dense, materialised
from .._core.errors import MaterialisationError
from .._core.notices import warn
from .._core.pytree import check_static_fields
from .._core.rules import Table, global_rules, look_up_primitive
from .._core.settings import Settings, current_settings, use_settings
from .._core.value import ArrayOrValue, Value, is_value
from .._signatures import checked
from .at_once import ARRAYS_OF_JAX, at_once, looks_at_numbers, runs_at_once
from .closed_over import note_closed_over
from .stage import Arguments, FilterSpec, is_leafless, local_dense_rules, stage


_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_R = TypeVar("_R", covariant=True)

PolicyName = Literal["warn", "allow", "forbid", "cheapest"]
Policy: TypeAlias = PolicyName | hooks.Policy
POLICIES = get_args(PolicyName)
# What a user gives as ``rules``: a table, or several, the first of which comes first.
Tables: TypeAlias = Table | Sequence[Table] | None


def transform(
    fn: Callable[_P, _R],
    filter_spec: FilterSpec = True,
    *,
    rules: Tables = None,
    materialise: Policy = "warn",
) -> Transformed[_P, _R]:
    """Make ``fn``, written for arrays, a function of values.

    ``fn`` is traced to a jaxpr once for each structure of its arguments. Each equation that
    a value meets is rewritten by the rules for the type of that value. The rewritten
    program is kept: a second call runs neither ``fn`` nor a rule.

    Parameters
    ----------
    fn
        Any function of JAX arrays, or a callable pytree such as an Equinox module. Its
        arguments and results are pytrees, in which values may stand for arrays. An
        argument that is neither an array nor a value is static, also a Python scalar.
    filter_spec
        The values to rewrite: ``True`` for all, a predicate on leaves, or a pytree prefix
        of booleans of ``(fn, args, kwargs)``. The other values reach ``fn`` as values, for
        a transform inside of ``fn``.
    rules
        A table of rules that are tried before those of `jaxrewrite.register`, or several, of
        which the first comes first.
    materialise
        What to do if no rule applies and a value has to become dense: ``"warn"`` (once for
        each primitive, type and source line), ``"allow"``, or ``"forbid"``. With
        ``"cheapest"``, or a `Cheapest` with a limit of memory, values also become dense where a
        model of costs says that the dense equations take less time.

    Returns
    -------
    Callable
        A function like ``fn``. It composes with `jax.jit`, `jax.grad`,
        `jax.vmap` and the other transformations of JAX, on either side. To a type checker
        it has the parameters of ``fn``, and a call that fits their annotations has the
        result that ``fn`` declares. Any other call has values among its arguments, and its
        result is what ``fn`` declares, or a value: ``Array | Any``, for example. Where you use
        what only the value has, narrow it: ``assert isinstance(result, Unitful)``.

    Raises
    ------
    TypeError
        If ``fn`` is not callable, or a generator or coroutine function, or ``rules`` is no
        table, nor a list of tables.
    ValueError
        If ``materialise`` or ``filter_spec`` is not one of the above.
    MaterialisationError, AmbiguousRuleError
        When the function is called: see these classes.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jax import lax
    >>> class Scaled(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     scale: jax.Array
    ...     def materialise(self):
    ...         return self.x * self.scale
    >>> @jaxrewrite.register(lax.neg_p)
    ... def _(v: Scaled):
    ...     return Scaled(v.x, -v.scale)
    >>> jaxrewrite.transform(lambda v: -v)(Scaled(jnp.ones(3), jnp.array(2.0)))
    Scaled([-2. -2. -2.], dtype=float32)
    """
    return _transformed(fn, filter_spec, rules, materialise)


def _transformed(
    fn: Callable[_P, _R], filter_spec: FilterSpec, rules: Tables, policy: Policy
) -> Transformed[_P, _R]:
    check_function("transform", fn)
    known = known_policy(policy)
    return Transformed(fn, filter_spec, tables_of(rules), known)


def tables_of(rules: Tables) -> tuple[Table, ...]:
    """The tables of a ``rules=``; `TypeError` if it is neither a table nor several."""
    tables: tuple[Any, ...] = () if rules is None else (rules,)
    if isinstance(rules, (list, tuple)):
        tables = tuple(rules)
    if not all(isinstance(x, Table) for x in tables):
        names = ", ".join(type(x).__name__ for x in tables)
        raise TypeError(
            f"rules= takes a table, a jaxrewrite.Rules, or a list of tables; got {names}."
        )
    return tables


def known_policy(policy: Policy) -> str | hooks.Policy:
    """The policy for what a user passed as ``materialise``; `ValueError` if it is none."""
    if not isinstance(policy, (str, type)) and callable(getattr(policy, "rewriter", None)):
        return policy
    if policy not in POLICIES:
        raise ValueError(
            f"materialise= must be one of {', '.join(map(repr, POLICIES))}; got {policy!r}."
        )
    return hooks.policies[policy]() if policy in hooks.policies else policy


def check_function(caller: str, fn: Callable[..., Any]) -> None:
    """Raise `TypeError` unless a call of ``fn`` runs its body."""
    if not callable(fn):
        raise TypeError(
            f"{caller} takes a function, not an object of type {type(fn).__name__}."
        )
    called = inspect.unwrap(fn)
    while isinstance(called, functools.partial):
        called = inspect.unwrap(called.func)
    if not hasattr(called, "__code__") and not isinstance(called, type):
        called = type(called).__call__  # An object with a method for calls.
    code = getattr(called, "__code__", None)
    if code is not None and code.co_flags & _RUNS_LATER:
        name = type(fn).__name__ if code.co_name == "__call__" else code.co_name
        raise TypeError(
            f"{caller} can't take {name}, a generator or coroutine function, "
            "because a call of it does not run its body. Return a list, or transform what "
            "the body calls."
        )


_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def make_jaxpr(
    fn: Callable[..., Any],
    filter_spec: FilterSpec = True,
    *,
    rules: Tables = None,
    materialise: Policy = "warn",
) -> Callable[..., ClosedJaxpr]:
    """Make a function that returns the rewritten program as a jaxpr.

    It takes the arguments of `transform`. The jaxpr takes the leaves of the values and the
    arrays among the arguments, and returns the leaves of the results.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> class Shifted(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     def materialise(self):
    ...         return self.x + 1
    >>> jaxrewrite.make_jaxpr(jnp.sin, materialise="allow")(Shifted(jnp.ones(2)))
    { lambda ; a:f32[2]. let b:f32[2] = add a 1.0:f32[]; c:f32[2] = sin b in (c,) }
    """
    transformed = _transformed(fn, filter_spec, rules, materialise)

    @functools.wraps(fn, assigned=("__name__", "__doc__"), updated=())
    def wrapped(*args: Any, **kwargs: Any) -> ClosedJaxpr:
        _, staged = transformed._staged(args, kwargs, always=True)
        return _compat.close_jaxpr(staged.program.jaxpr, staged.program.consts)

    return wrapped


def bind(
    primitive: Primitive | str | Callable[..., Any], /, *operands: Any, **params: Any
) -> Any:
    """Apply one primitive to values and arrays, by the rules in force.

    A rule calls it to pass an operation on to the rules of its operands.

    Parameters
    ----------
    primitive
        The primitive, or its name; or a function that a rule may be for.
    *operands
        Arrays and values.
    **params
        The primitive's parameters. Those that may be ``None`` are, by default. For a function,
        other arguments.

    Returns
    -------
    Any
        The result, or a list of results if the primitive has several. Each is an array or
        a value. For a function, a list.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> jaxrewrite.bind("add", jnp.ones(2), jnp.ones(2))
    Array([2., 2.], dtype=float32)
    """
    primitive = look_up_primitive(primitive)
    return transform(_binder(primitive, params))(*operands)


_binders = BoundedCache(1024)


def _binder(primitive: Primitive, params: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that applies a primitive, kept so that its programs are."""
    # Two "hi" primitives may be equal objects and yet have different avals.
    if primitive.name == "call_hi_primitive":
        return _new_binder(primitive, params)
    key = primitive, *_compat.key_of(params)
    try:
        apply: Any = _binders.get(key)
    except TypeError:  # The parameters are not hashable.
        return _new_binder(primitive, params)
    if apply is None:
        apply = _new_binder(primitive, params)
        _binders.put(key, apply)
    return apply


def _new_binder(primitive: Primitive, params: Mapping[str, Any]) -> Callable[..., Any]:
    all_params = checked(primitive, params)
    has_bodies = any(True for _ in jaxprs_in_params(all_params))

    def apply(*operands: jax.Array) -> Any:
        alike = operands if has_bodies else _varying_alike(operands)
        return primitive.bind(*alike, **primitive.get_bind_params(all_params))

    apply.__name__ = primitive.name
    apply.__qualname__ = f"bind({primitive.name!r}, ...)"
    return apply


def _varying_alike(operands: Sequence[Any]) -> Sequence[Any]:
    """Operands that vary over the same mesh axes, inside of `jax.shard_map`.

    JAX's own functions see to that before they bind a primitive.
    """
    if len({_compat.varying_axes(jax.typeof(x)) for x in operands}) < 2:
        return operands
    return [_compat.vary_as(x, operands) for x in operands]


# --- values made dense ------------------------------------------------------------


def dense(value: Value) -> jax.Array:
    """Make one value dense, and the values among its children."""
    return make_dense(value, _dense_layer)


def _dense_layer(value: Value, checked: Callable[[Any], Any]) -> ArrayOrValue:
    dense = at_once(_in_steps, value)
    # NumPy arrays may have 64 bits where JAX's do not.
    if isinstance(dense, (np.ndarray, np.generic)):
        dense = np.asarray(dense, _compat.leaf_aval(dense).dtype)
    return checked(dense)


def _in_steps(value: Value) -> ArrayOrValue:
    leaves, treedef = rule_children(value)
    if not any(map(is_value, leaves)):
        if any(map(_is_python_number, leaves)):
            arrays = [jax.numpy.asarray(x) if _is_python_number(x) else x for x in leaves]
            value = tree_unflatten(treedef, arrays)
        return materialised(value)
    materialise = _materialiser(treedef)
    try:
        return transform(materialise, materialise="allow")(*leaves)
    except MaterialisationError as error:
        if not (looks_at_numbers(error) and _compat.nothing_is_traced()):
            raise
    # Each of the values has numbers to look at.
    return materialise(*[dense(x) if is_value(x) else x for x in leaves])


def _is_python_number(leaf: object) -> bool:
    """Whether a leaf has no shape, and none of an array's methods, outside of a trace."""
    return isinstance(leaf, (bool, int, float, complex)) and not hasattr(leaf, "shape")


@cached(256)
def _materialiser(treedef: PyTreeDef) -> Callable[..., Any]:
    def materialise(*leaves: jax.Array) -> ArrayOrValue:
        return materialised(tree_unflatten(treedef, leaves))

    return materialise


# --- a transformed function -----------------------------------------------------


_NOTHING: Any = object()  # It stands for a program that has nothing to rewrite.


def _is_one_leaf(x: object) -> bool:
    # A field of a stack without leaves is the same for all elements, whatever axes others have.
    return is_leafless(x) or (is_value(x) and x._holds_stacked_leaves)


def _is_jittable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether nothing is traced, and `jax.jit` takes the arguments as they are.

    Without a value among them, there is nothing to compile beside the function itself.
    """
    leaves, treedef = tree_flatten((args, kwargs))
    if not runs_at_once(leaves, ARRAYS_OF_JAX):
        return False
    try:
        has_values = _structures_with_values.get(treedef)
    except TypeError:  # The metadata is not hashable, which the other way reports.
        return False
    if has_values is None:
        tree = tree_unflatten(treedef, leaves)
        has_values = _has_values(tree)
        _structures_with_values.put(treedef, has_values)
    return has_values


_structures_with_values = BoundedCache(1024)


def _has_values(tree: Tree) -> bool:
    return any(map(is_value, tree_leaves(tree, is_leaf=is_value)))


def function_tree(fn: object) -> Tree:
    """The function if it is itself a pytree, which may hold values; else ``None``."""
    return None if treedef_is_leaf(tree_structure(fn)) else fn


def _may_own_programs(instance: object) -> bool:
    """Whether the programs of a method can be kept with its object, which is no argument of them."""
    is_weakly_referable = type(instance).__weakrefoffset__ != 0
    return function_tree(instance) is None and is_weakly_referable


class Transformed(Generic[_P, _R]):
    """The callable that `transform` returns."""

    __name__: str
    __wrapped__: Callable[_P, _R]

    def __init__(
        self,
        fn: Callable[_P, _R],
        filter_spec: FilterSpec,
        rules: tuple[Table, ...],
        policy: str | hooks.Policy,
    ):
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        self._filter_spec = filter_spec
        self._rules = rules
        self._policy = policy
        self._fn_tree = function_tree(fn)
        # The nearest table of rules, unless the call is inside of other transforms.
        self._table = rules[0] if rules else global_rules
        kept, self._tag = _program_cache(fn, self._fn_tree, self._table)
        self._programs = BoundedCache(1024) if kept is None else kept
        # The same function inside of `jax.jit`, if ``fn`` is a jitted one.
        self._jitted = BoundedCache(16) if _compat.is_plain_jit(fn) else None

    @overload
    def __call__(self, /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...

    # Annotations can't say that an argument for an array may be a value, nor which results then
    # are values: ``Any`` stands for these.
    @overload
    def __call__(self, /, *args: Any, **kwargs: Any) -> _R | Any: ...

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._jitted is not None and _is_jittable(args, kwargs):
            return self._in_jit(self._jitted)(*args, **kwargs)
        leaves, staged = self._staged(args, kwargs)
        if staged is None:
            return self._run_as_it_is(args, kwargs)
        results = staged(leaves)
        if staged.changing:
            results, changes = results
            for hook, changed in zip(staged.changing, changes, strict=True):
                hook.store((self._fn_tree, args, kwargs), changed)
        if staged.has_leafless and not (
            _compat.makes_jaxpr() or _compat.nothing_is_traced()
        ):
            # `jax.vmap` batches leaves, so it cannot batch a value that has none.
            return tree_map(
                lambda x: dense(x) if is_leafless(x) else x, results, is_leaf=_is_one_leaf
            )
        return results

    def _in_jit(self, cache: BoundedCache) -> Callable[..., Any]:
        """The function under `jax.jit`, which finds a program faster than this class does."""
        key = current_settings().refined(self._rules, self._policy).key()
        jitted = cache.get(key)
        if jitted is None:
            twin = self.__copy__()
            twin._jitted = None
            jitted = jax.jit(twin)
            cache.put(key, jitted)
        return jitted

    def _run_as_it_is(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """Call the function, whose transforms inside may meet values that it makes."""
        try:
            if not self._rules and self._policy == "warn":
                return self._fn(*args, **kwargs)
            with use_settings(current_settings().refined(self._rules, self._policy)):
                return self._fn(*args, **kwargs)
        except (TypeError, ValueError) as error:
            note_closed_over(error, self._fn)
            raise

    @overload
    def __get__(self, instance: None, owner: object = None) -> Transformed[_P, _R]: ...

    @overload
    def __get__(
        self: Transformed[Concatenate[Any, _Q], _R], instance: object, owner: object = None
    ) -> Transformed[_Q, _R]: ...

    def __get__(self, instance: Any, owner: object = None) -> Any:
        if instance is None:
            return self
        # A pytree prefix counts the object among the arguments.
        is_for_any = isinstance(self._filter_spec, bool) or callable(self._filter_spec)
        if is_for_any and _may_own_programs(instance):
            method = types.MethodType(self._fn, instance)
            return Transformed(method, self._filter_spec, self._rules, self._policy)
        return functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"jaxrewrite.transform({self._fn!r})"

    # A copy or pickle is one of the function, without its programs.

    def __copy__(self) -> Transformed[_P, _R]:
        return Transformed(self._fn, self._filter_spec, self._rules, self._policy)

    def __deepcopy__(self, memo: dict[int, Any]) -> Transformed[_P, _R]:
        fn = copy.deepcopy(self._fn, memo)
        spec = copy.deepcopy(self._filter_spec, memo)
        return Transformed(fn, spec, self._rules, self._policy)

    def __reduce__(self) -> str | tuple[Any, ...]:
        if isinstance(self._fn, types.MethodType):
            instance, name = self._fn.__self__, self._fn.__name__
            if isinstance(inspect.getattr_static(type(instance), name, None), Transformed):
                return getattr, (instance, name)
        # If the module of the function has this transform under its name, pickle the name.
        if _named(self._fn) is self:
            return self._fn.__qualname__
        if self._rules:
            raise pickle.PicklingError(
                f"transform({getattr(self._fn, '__name__', self._fn)}, rules=...) has tables of rules, "
                "which can't be pickled. Give it a name in its module, or pickle the function and "
                "transform it where it is loaded."
            )
        return _transformed, (self._fn, self._filter_spec, self._rules, self._policy)

    def _staged(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], always: bool = False
    ) -> tuple[list[Any], Any]:
        """The leaves of the arguments, and the program for them.

        The program is ``None`` if there is nothing to rewrite and ``always`` is false.
        """
        tree = (self._fn_tree, args, kwargs)
        leaves, treedef = tree_flatten(tree)
        settings = current_settings().refined(self._rules, self._policy)
        if settings.rules.num_later and _has_values(tree):
            settings = settings._replace(rules=settings.rules.of_values())
        key = self._key(tree, leaves, treedef, settings)
        programs, table = self._programs, settings.rules.tables[0]
        if table is not self._table:
            kept, _ = _program_cache(self._fn, self._fn_tree, table)
            programs = self._programs if kept is None else kept
        staged = None if key is None else programs.get(key)
        if (
            staged is None
            or (staged is _NOTHING and always)
            or (staged is not _NOTHING and staged.is_spent())
        ):
            in_force = settings.rules
            if (
                always
                or _has_values(tree)
                or local_dense_rules(in_force)
                or in_force.passes()
            ):
                for leaf in filter(is_value, leaves):
                    raise no_pytree(leaf)
                try:
                    staged = stage(Arguments(self._fn, tree), self._filter_spec, settings)
                except (TypeError, ValueError) as error:
                    note_closed_over(error, self._fn)
                    raise
                is_cacheable = staged.is_cacheable()
            else:
                staged, is_cacheable = _NOTHING, True
            if key is not None and is_cacheable:
                programs.put(key, staged)
        elif staged is not _NOTHING and staged.warnings:
            warn(staged.warnings, is_again=True)
        return leaves, None if staged is _NOTHING else staged

    def _key(
        self, tree: Tree, leaves: Sequence[Any], treedef: PyTreeDef, settings: Settings
    ) -> tuple[Any, ...] | None:
        """The key of a program in the cache; ``None`` if it is in no cache."""
        if settings.recorder is not None:
            return None
        key = (
            self._tag,
            treedef,
            tuple([_leaf_key(leaf) for leaf in leaves]),
            self._filter_spec,
            settings.key(),
            _compat.trace_context(),
        )
        try:
            hash(key)
        except TypeError:
            for value in filter(is_value, tree_leaves(tree, is_leaf=is_value)):
                check_static_fields(value)
            return None
        return key


def _named(fn: object) -> object:
    """The object that the module of a function has under the function's name."""
    named = sys.modules.get(getattr(fn, "__module__", ""))
    for name in getattr(fn, "__qualname__", "").split("."):
        named = getattr(named, name, None)
    return named


def _program_cache(
    fn: Callable[..., Any], fn_tree: Tree, table: Table
) -> tuple[BoundedCache | None, Any]:
    """The cache for the programs of a function, and a tag that is part of the keys.

    The programs are kept with the function, and with the nearest table of rules. Python makes a
    method anew at each access, so those of a method are kept with its object. Those of a callable
    pytree are kept with its class, because its leaves are arguments of the program. There is no
    cache if nothing can be kept with that object.
    """
    owner: Any = fn if fn_tree is None else type(fn)
    tag, cache_of = None, table.programs.of
    if inspect.ismethod(owner):
        # The methods of equal objects may differ, as for `jax.jit`.
        owner, tag, cache_of = owner.__self__, owner.__func__, table.programs.of_same
    try:
        hash(owner)
        return cache_of(owner), tag
    except TypeError:  # The owner is not hashable or not weakly referable.
        return None, tag


def _leaf_key(leaf: object) -> Hashable:
    """The part of a program's key that stands for a leaf of its arguments."""
    if _compat.is_array(leaf):
        return _compat.leaf_aval(leaf)
    if isinstance(leaf, (float, complex)):  # 0.0 == -0.0, and nan != nan.
        return type(leaf), repr(leaf)
    if isinstance(leaf, slice):  # Slices are hashable from Python 3.12 on.
        return slice, *map(_leaf_key, (leaf.start, leaf.stop, leaf.step))
    return type(leaf), leaf
