"""How a class becomes a dataclass and a pytree."""

import asyncio
import copy
import dataclasses
import functools
import importlib
import inspect
import itertools
import operator
import os
import pathlib
import pickle
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, slow

import jaxrewrite
from jaxrewrite import values


class Scaled(jaxrewrite.ArrayValue):
    x: jax.Array
    scale: float | jax.Array = 1.0
    name: str = jaxrewrite.field(static=True, default="none")

    def materialise(self):
        return self.x * self.scale


class Checked(jaxrewrite.ArrayValue):
    x: jax.Array
    y: jax.Array

    def __post_init__(self):
        if jnp.shape(self.x) != jnp.shape(self.y):
            raise ValueError("x and y differ in shape")

    def materialise(self):
        return self.x + self.y


class OwnInit(jaxrewrite.ArrayValue):
    x: jax.Array
    n: int = jaxrewrite.field(static=True)

    def __init__(self, n):
        self.n = n
        self.x = jnp.arange(float(n))

    def materialise(self):
        return self.x


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OwnDecorator(jaxrewrite.ArrayValue):
    x: jax.Array
    n: int = dataclasses.field(metadata={"static": True})

    def materialise(self):
        return self.x * self.n


@jax.tree_util.register_pytree_node_class
class OwnPytree(jaxrewrite.ArrayValue):
    def __init__(self, x):
        object.__setattr__(self, "kept", x)

    def tree_flatten(self):
        return (self.kept,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

    def materialise(self):
        return self.kept


class Module(eqx.Module, jaxrewrite.ArrayValue):
    x: jax.Array
    n: int = eqx.field(static=True)

    def materialise(self):
        return self.x * self.n


class ModuleSecond(jaxrewrite.ArrayValue, eqx.Module):
    x: jax.Array
    n: int = eqx.field(static=True)

    def materialise(self):
        return self.x * self.n


class SetLater(jaxrewrite.ArrayValue):
    """Fields that only ``__post_init__`` sets, one of them metadata."""

    x: jax.Array
    largest: jax.Array = jaxrewrite.field(init=False)
    length: int = jaxrewrite.field(init=False, static=True, default=1)

    def __post_init__(self):
        object.__setattr__(self, "largest", self.x.max())
        object.__setattr__(self, "length", len(self.x))

    def materialise(self):
        return self.x + self.largest * self.length


class Child(Scaled):
    extra: jax.Array = 0.0

    def materialise(self):
        return super().materialise() + self.extra


X = jnp.arange(3.0)
EXAMPLES = [
    Scaled(X, 2.0),
    Checked(X, X),
    OwnInit(3),
    OwnDecorator(X, 2),
    OwnPytree(X),
    Module(X, 2),
    ModuleSecond(X, 2),
    SetLater(X),
    Child(X, 2.0, extra=1.0),
]


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda v: type(v).__name__)
def test_round_trips_and_runs(value):
    leaves, treedef = jax.tree.flatten(value)
    again = jax.tree.unflatten(treedef, leaves)
    assert type(again) is type(value)
    np.testing.assert_allclose(again.materialise(), value.materialise())
    assert (value.shape, value.ndim, value.size) == ((3,), 1, 3)
    assert value.dtype == jnp.float32
    assert jnp.shape(value) == (3,)
    assert jnp.ndim(value) == 1
    out = jaxrewrite.transform(jnp.sin, materialise="allow")(value)
    np.testing.assert_allclose(out, jnp.sin(value.materialise()), rtol=1e-6)
    jitted = jax.jit(jaxrewrite.transform(jnp.sin, materialise="allow"))(value)
    np.testing.assert_allclose(jitted, out, rtol=1e-6)


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda v: type(v).__name__)
def test_bare_objects_as_leaves(value):
    for leaf in (None, object(), "text"):
        jax.tree.map(lambda _, leaf=leaf: leaf, value)
    jax.eval_shape(lambda v: v, value)


def test_a_subclass_is_a_frozen_dataclass():
    assert [f.name for f in dataclasses.fields(Scaled)] == ["x", "scale", "name"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        EXAMPLES[0].x = X
    assert dataclasses.replace(EXAMPLES[0], scale=3.0).scale == 3.0


def test_it_is_one_before_the_first_instance():
    class Fresh(Scaled):
        more: jax.Array = 0.0

    assert dataclasses.is_dataclass(Fresh)
    assert [f.name for f in dataclasses.fields(Fresh)] == ["x", "scale", "name", "more"]


def test_static_fields_are_metadata_with_key_paths():
    value = Scaled(X, 2.0, name="n")
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(value)]
    assert paths == [".x", ".scale"]
    assert jax.tree.structure(value) != jax.tree.structure(Scaled(X, 2.0, name="m"))


def test_checks_run_for_users_only():
    with pytest.raises(ValueError, match="differ in shape"):
        Checked(X, jnp.ones(2))
    with pytest.raises(ValueError, match="differ in shape"):
        dataclasses.replace(Checked(X, X), y=jnp.ones(2))
    jax.tree.map(lambda _: object(), Checked(X, X))
    jax.vmap(lambda v: v)(Checked(jnp.ones((2, 3)), jnp.ones((2, 3))))


@pytest.mark.parametrize("has_init", [False, True])
def test_a_field_with_the_name_of_an_inherited_property_is_an_error(has_init):
    class Sized(jaxrewrite.ArrayValue):
        x: jax.Array
        size: int = jaxrewrite.field(static=True)

        if has_init:

            def __init__(self, x, size):
                self.__dict__.update(x=x, size=size)

        def materialise(self):
            return self.x

    for _ in range(2):
        with pytest.raises(
            TypeError, match="Sized.size is a field, but ArrayValue.size is"
        ):
            Sized(jnp.ones(3), 2)


@pytest.mark.parametrize("name", ["aval", "materialise", "tangent"])
def test_a_field_with_the_name_of_a_method_is_an_error(name):
    bases = (jaxrewrite.ArrayValue,)
    with pytest.raises(TypeError, match=f"Named.{name} is a field, but has to be a method"):
        type("Named", bases, {"__annotations__": {name: jax.Array}})
    type("Declared", bases, {"__annotations__": {name: ClassVar[Callable[..., Any]]}})


@pytest.mark.parametrize("name", ["outer", "materialise_policy", "rules_see_values"])
def test_what_is_one_for_all_values_of_a_class_is_no_field(name):
    bases, default = (jaxrewrite.ArrayValue,), getattr(jaxrewrite.ArrayValue, name)
    message = f"Each.{name} is a field, .* without a type, as in {name} = {default!r}"
    annotations = {"x": jax.Array, name: Any}
    for members in ({}, {name: default}):
        with pytest.raises(TypeError, match=message):
            type("Each", bases, {"__annotations__": annotations, **members})
    declared = {"__annotations__": {"x": jax.Array, name: ClassVar[Any]}, name: default}
    type("Declared", bases, declared)


def test_fields_may_have_the_names_of_what_is_looked_up_in_the_class():
    class Filled(jaxrewrite.ArrayValue):
        x: jax.Array
        default: jax.Array

        def materialise(self):
            return jnp.where(self.x == 0, self.default, self.x)

    run = jaxrewrite.transform(jnp.negative, materialise="allow")
    np.testing.assert_array_equal(run(Filled(X, 9.0)), -jnp.where(X == 0, 9.0, X))


WRONG_MEMBERS = {
    "aval": (property(lambda self: X), "Wrong.aval is a property, .* a method"),
    "materialise": (jaxrewrite.field(static=True), "Wrong.materialise is a field"),
    "sliceable": (True, "Wrong.sliceable is a bool, .* as Value.sliceable is"),
    "join": (functools.cached_property(lambda self: X), "is a cached_property"),
    "shape": (lambda self: (3,), "a method, but has to be a property, as .*shape is"),
    "dtype": (jnp.float32, "Wrong.dtype is a .*, but a value has the dtype of its aval"),
    "size": (6, "Wrong.size is a int, but a value has the size of its aval"),
    "outer": ("5", "Wrong.outer has to be a number; it is '5'"),
    "materialise_policy": ("never", "materialise_policy has to be one of .*'never'"),
}


@pytest.mark.parametrize("name", WRONG_MEMBERS)
def test_members_that_mean_something_else_are_an_error_of_the_class(name):
    member, message = WRONG_MEMBERS[name]
    with pytest.raises(TypeError, match=message):
        type("Wrong", (jaxrewrite.ArrayValue,), {name: member})


def test_methods_may_be_descriptors_and_those_of_python_none():
    class Fine(jaxrewrite.ArrayValue):
        x: jax.Array
        outer = np.float32(1.5)
        __iter__ = None
        tangent = functools.partialmethod(lambda self, _, tangents: tangents, None)

        def materialise(self):
            return self.x

    assert Fine(X).shape == (3,)
    with pytest.raises(TypeError, match="not iterable"):
        iter(Fine(X))


def test_a_field_with_a_default_replaces_an_inherited_property():
    class Sized(jaxrewrite.ArrayValue):
        x: jax.Array
        size: int = 3

        def materialise(self):
            return self.x

    assert Sized(jnp.ones(2)).size == 3


@pytest.mark.parametrize("slots", [False, True])
def test_a_decorated_class_keeps_the_operators_of_arrays(slots):
    @dataclasses.dataclass(frozen=True, order=True, slots=slots)
    class Halved(jaxrewrite.ArrayValue):
        x: jax.Array
        materialise_policy = "allow"

        def materialise(self):
            return self.x / 2

    @dataclasses.dataclass(frozen=True, slots=slots)
    class Shown(Halved):
        def __repr__(self):
            return "shown"

        def __eq__(self, other):
            return "compared"

    value = Halved(X)
    np.testing.assert_array_equal(value == value.materialise(), [True] * 3)
    np.testing.assert_array_equal(value < value, [False] * 3)
    assert repr(value).startswith("Halved([0.") and "x=" not in repr(value)
    for unhashable in (value, Shown(X)):
        with pytest.raises(TypeError, match="unhashable"):
            hash(unhashable)
    assert (repr(Shown(X)), Shown(X) == 1) == ("shown", "compared")


def test_a_decorated_class_below_one_that_does_not_tell_of_its_subclasses():
    class Silent(jaxrewrite.ArrayValue):
        def __init_subclass__(cls, **kwargs):
            """It does not call that of its base."""

    @dataclasses.dataclass(frozen=True)
    class Shown(Silent):
        x: jax.Array

        def materialise(self):
            return self.x

        def __repr__(self):
            return "shown"

    assert repr(Shown(X)) == "shown"


OWN_PYTREES = {
    "flatten": jax.tree_util.register_pytree_node_class,
    "flatten with keys": jax.tree_util.register_pytree_with_keys_class,
    "a call": lambda cls: (
        jax.tree_util.register_pytree_node(
            cls, lambda v: ((v.x,), None), lambda _, children: cls(*children)
        )
        or cls
    ),
}


@pytest.mark.parametrize("how", OWN_PYTREES)
def test_a_pytree_by_its_own_decorator_needs_no_annotations(how):
    @OWN_PYTREES[how]
    class Own(jaxrewrite.ArrayValue):
        def __init__(self, x):
            self.x = x

        def tree_flatten(self):
            return (self.x,), None

        def tree_flatten_with_keys(self):
            return ((jax.tree_util.GetAttrKey("x"), self.x),), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

        def materialise(self):
            return self.x

    assert not dataclasses.is_dataclass(Own)
    negative = jaxrewrite.transform(jnp.negative, materialise="allow")
    np.testing.assert_array_equal(negative(Own(X)), -X)
    assert str(inspect.signature(Own)) == "(x)"


def test_fields_may_have_the_names_of_first_parameters():
    class Named(jaxrewrite.ArrayValue):
        self: jax.Array
        cls: int = jaxrewrite.field(static=True)

        def materialise(this):  # noqa: N805
            return this.self * this.cls

    value = jax.tree.map(lambda x: x + 1, Named(self=X, cls=2))
    np.testing.assert_array_equal(jaxrewrite.materialise(value), 2 * (X + 1))


def test_what_is_set_has_to_be_annotated():
    class Bare(jaxrewrite.ArrayValue):
        def __init__(self, x):
            self.x = x

        def materialise(self):
            return self.x

    with pytest.raises(
        dataclasses.FrozenInstanceError, match=r"in Bare, as in x: jax.Array"
    ):
        Bare(X)


def test_own_init_sets_each_field_once():
    value = OwnInit(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.n = 4

    class Forgets(jaxrewrite.ArrayValue):
        x: jax.Array

        def __init__(self):
            pass

        def materialise(self):
            return self.x

    with pytest.raises(TypeError, match="Forgets.__init__ does not set 'x'"):
        Forgets()


@pytest.mark.parametrize(
    ("base", "method"),
    [
        (jaxrewrite.ArrayValue, "materialise"),
        (values.Coded, "levels"),
        (values.Linear, "map_parts"),
    ],
)
def test_what_a_base_class_needs_must_be_defined(base, method):
    class Nothing(base):
        x: jax.Array

    if method != "materialise":
        Nothing.materialise = lambda self: self.x
    with pytest.raises(TypeError, match=rf"Nothing has to define {method}\(\)"):
        Nothing(X)

    class Something(Nothing):
        pass

    setattr(Something, method, lambda self: self.x)
    assert Something(X).x is X


def test_a_type_may_say_its_shape_by_a_property_or_field():
    class Fixed(jaxrewrite.ArrayValue):
        x: jax.Array
        shape = property(lambda self: self.x.shape)
        ndim: int = jaxrewrite.field(static=True, default=1)

        def materialise(self):
            return self.x

    assert (Fixed(X).shape, Fixed(X).ndim) == (X.shape, 1)


def test_flattening_is_jax_own():
    """JAX flattens it in C++: a Python flattening function would be called."""
    registered = jax.tree_util.default_registry.flatten_one_level(Scaled(X, 2.0))
    assert registered is not None
    assert "tree_flatten" not in vars(Scaled)


def test_copies():
    value = Scaled(X, 2.0)
    for again in (
        copy.copy(value),
        copy.deepcopy(value),
        pickle.loads(pickle.dumps(value)),
    ):
        np.testing.assert_allclose(again.materialise(), value.materialise())


def test_exports_serialised_as_arguments_and_results():
    fn = jax.jit(jaxrewrite.transform(lambda v: (v, v * 2.0), materialise="allow"))
    value = Scaled(X, jnp.float32(2.0))
    exported = jax.export.export(fn)(value)
    again, doubled = jax.export.deserialize(exported.serialize()).call(value)
    assert isinstance(again, Scaled)
    assert again.name == "none"
    np.testing.assert_allclose(doubled, X * 4)


def test_classes_of_one_name_export_too():
    def define():
        class Same(jaxrewrite.ArrayValue):
            x: jax.Array

            def materialise(self):
                return self.x

        return Same

    assert define()(X).shape == define()(X).shape == (3,)


MASK = np.array([True, False, True])


def test_operators_are_transforms():
    value, column, dense = Scaled(X, 2.0), Scaled(X[:, None], 2.0), X * 2.0
    with pytest.warns(jaxrewrite.MaterialisationWarning):
        cases = [
            (value + 1.0, dense + 1.0),
            (1.0 - value, 1.0 - dense),
            (value * value, dense * dense),
            (X @ value, X @ dense),
            (np.arange(3.0, dtype=np.float32) @ value, X @ dense),
            (value[1], dense[1]),
            (value[1:], dense[1:]),
            (value[None, :2], dense[None, :2]),
            (value[jnp.array([0, 2])], dense[jnp.array([0, 2])]),
            (value[MASK], dense[MASK]),
            (value[None, jnp.array(MASK)], dense[None, MASK]),
            (jax.jit(lambda v: v[MASK])(value), dense[MASK]),
            (column[MASK, values.Tagged(jnp.array([0, 0]), "index")].array, dense[MASK]),
            (value.T, dense.T),
            (value**2, dense**2),
            (abs(-value), abs(-dense)),
            (round(value, 1), round(dense, 1)),
            (value == dense, dense == dense),
            (value < 1.0, dense < 1.0),
            (divmod(value, 2.0)[0], divmod(dense, 2.0)[0]),
            (value.astype(jnp.int32), dense.astype(jnp.int32)),
            (value.reshape(3, 1), dense.reshape(3, 1)),
            (value.reshape((1, 3)), dense.reshape(1, 3)),
            (column.transpose(), dense[None]),
            (column.transpose(1, 0), dense[None]),
            (column.transpose((0, 1)), dense[:, None]),
            (jnp.stack(list(value)), dense),
            (np.asarray(value), np.asarray(dense)),
        ]
    for got, want in cases:
        np.testing.assert_allclose(got, want)
        assert got.dtype == want.dtype
    assert len(value) == 3
    with pytest.raises(TypeError, match="truth value of a Scaled"):
        bool(value)
    with pytest.raises(TypeError):
        hash(value)


@pytest.mark.parametrize("other", ["a", None, [1.0, 2.0], {}], ids=str)
def test_what_is_no_operand_is_named_beside_the_value(other):
    value, name = Scaled(X, 2.0), type(other).__name__
    for binary in (operator.add, operator.matmul, operator.lt):
        with pytest.raises(TypeError, match=f"'Scaled' and '{name}'"):
            binary(value, other)
    if isinstance(other, (list, dict)):
        with pytest.raises(TypeError):  # As JAX does.
            operator.eq(value, other)
    else:
        assert (value == other, value != other) == (False, True)


def test_equality_with_a_container_is_an_error_as_of_arrays():
    for equality in (operator.eq, operator.ne):
        for x in (X, Scaled(X, 2.0)):
            with pytest.raises(TypeError):
                equality(x, [1.0, 2.0])


def test_policy_of_a_type():
    class Quiet(jaxrewrite.ArrayValue):
        x: jax.Array
        materialise_policy = "allow"

        def materialise(self):
            return self.x

    class Strict(Quiet):
        materialise_policy = "forbid"

    jaxrewrite.transform(jnp.sin)(Quiet(X))
    with pytest.raises(jaxrewrite.MaterialisationError, match="'sin' on Strict"):
        jaxrewrite.transform(jnp.sin)(Strict(X))
    with pytest.raises(jaxrewrite.MaterialisationError, match="'sin' on Quiet"):
        jaxrewrite.transform(jnp.sin, materialise="forbid")(Quiet(X))
    jaxrewrite.transform(jnp.sin, materialise="allow")(Strict(X))


def test_jax_functions_outside_refuse_values():
    v = EXAMPLES[0]
    hint = (
        r"take a Scaled only as .*transform\(fn\)\(value\).*jaxrewrite.numpy.*materialise"
    )
    for fn in (jnp.sin, jnp.sum, lambda v: jnp.matmul(X, v), lambda v: jnp.stack([v, v])):
        with pytest.raises(TypeError, match=hint):
            fn(v)
    with pytest.raises(TypeError, match=hint):
        jax.eval_shape(jax.jit(jnp.sin), v)
    with pytest.raises(TypeError, match="Scaled"):
        jax.lax.sin(v)


def test_a_value_that_is_closed_over_is_an_argument_to_pass():
    value = EXAMPLES[0]
    with pytest.raises(TypeError, match="pass it as an argument") as caught:
        jaxrewrite.transform(lambda x: jnp.sin(value) + x)(jnp.ones(3))
    assert "closes over value (Scaled)" in caught.value.__notes__[-1]


def test_nothing_takes_a_value_for_an_array():
    v = EXAMPLES[0]
    assert not hasattr(v, "__jax_array__")
    with pytest.warns(
        jaxrewrite.MaterialisationWarning, match="asarray makes a Scaled dense"
    ):
        assert type(jnp.asarray(v)) is type(X)
    with jaxrewrite.no_materialise(), pytest.raises(jaxrewrite.MaterialisationError):
        jnp.asarray(v)
    # A function of JAX that makes arrays of its arguments, as docs/sharp_bits.rst says.
    with pytest.warns(
        jaxrewrite.MaterialisationWarning, match="asarray makes a Scaled dense"
    ):
        found = jax.scipy.special.ndtr(v)
    np.testing.assert_array_equal(found, jax.scipy.special.ndtr(np.asarray(v)))
    with jaxrewrite.no_materialise(), pytest.raises(jaxrewrite.MaterialisationError):
        jax.scipy.special.ndtr(v)
    with pytest.warns(jaxrewrite.MaterialisationWarning):  # JAX defers to the value.
        np.testing.assert_array_equal(X + v, X + np.asarray(v))
    assert jnp.shape(v) == v.shape and jnp.ndim(v) == v.ndim
    assert jax.tree.map(lambda x: x, v) is not v


def test_a_region_without_dense_values_is_one_of_a_task():
    def is_allowed():
        try:
            jaxrewrite.transform(jnp.sort)(EXAMPLES[0])
        except jaxrewrite.MaterialisationError:
            return False
        return True

    async def forbidding(others):
        """Leave the region after a task has entered one, and before it leaves that."""
        with jaxrewrite.no_materialise():
            for _ in range(others):
                await asyncio.sleep(0)
            return is_allowed()

    async def free():
        await asyncio.sleep(0)
        return is_allowed()

    async def tasks():
        return await asyncio.gather(forbidding(2), forbidding(4), free())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jaxrewrite.MaterialisationWarning)
        assert asyncio.run(tasks()) == [False, False, True]
        assert is_allowed()


# --- two types with fields of the same names ---------------------------------------


class Plus(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


class Minus(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return -self.x


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class DataPlus(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class DataMinus(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return -self.x


class Holder(jaxrewrite.ArrayValue):
    part: jaxrewrite.ArrayValue

    def materialise(self):
        return jaxrewrite.materialise(self.part) * 2


alike = pytest.mark.parametrize(
    ("one", "other"),
    [
        (Plus, Minus),
        (DataPlus, DataMinus),
        (lambda x: Holder(Plus(x)), lambda x: Holder(Minus(x))),
        (lambda x: Holder(DataPlus(x)), lambda x: Holder(DataMinus(x))),
    ],
    ids=["own", "registered", "nested", "nested registered"],
)


@alike
def test_types_of_one_layout_are_two_structures(one, other):
    x = jnp.arange(3.0)
    v, w = one(x), other(x)
    assert jaxrewrite.same_structure(v, one(2 * x))
    assert not jaxrewrite.same_structure(v, w)
    assert not jaxrewrite.same_structure(v, one(jnp.arange(4.0)))
    with pytest.raises(ValueError, match="Its structure differs from that of the first"):
        jaxrewrite.stack([v, w])


def test_a_class_that_was_defined_again_is_told_of():
    old, new = (type("Again", (Plus,), {"__module__": __name__}) for _ in range(2))
    with pytest.raises(ValueError, match="The class Again was defined again in between"):
        jaxrewrite.stack([old(jnp.ones(2)), new(jnp.ones(2))])
    with pytest.raises(ValueError, match="of their leaves, are the same.$"):
        jaxrewrite.stack([Plus(jnp.ones(2)), Minus(jnp.ones(2))])


@alike
def test_types_of_one_layout_meet(one, other):
    """In branches, in carries, and in what a loop stacks, each array stays what it is."""
    x = jnp.arange(3.0)
    v, w = one(x), other(x)
    programs = {
        "cond": lambda p, v, w: jax.lax.cond(p, lambda: v, lambda: w),
        "switch": lambda p, v, w: jax.lax.switch(
            p.astype(int), [lambda: v, lambda: w, lambda: v]
        ),
        "scan": lambda p, v, w: jax.lax.scan(
            lambda c, _: ((c[1], c[0]), c[0]), (v, w), None, 3
        ),
        "fori": lambda p, v, w: jax.lax.fori_loop(
            0, p.astype(int) + 1, lambda i, c: (c[1], c[0]), (v, w)
        ),
        "while": lambda p, v, w: jax.lax.while_loop(
            lambda c: c[2] < 3, lambda c: (c[1], c[0], c[2] + 1), (v, w, 0)
        ),
    }
    for name, fn in programs.items():
        for p in (True, False):
            run = jaxrewrite.transform(fn, materialise="allow")
            got = jaxrewrite.materialise(jax.jit(run)(jnp.array(p), v, w))
            dense = fn(jnp.array(p), *jaxrewrite.materialise((v, w)))
            jax.tree.map(np.testing.assert_allclose, got, dense)
            assert jax.tree.structure(got) == jax.tree.structure(dense), name


def test_jax_itself_tells_types_of_one_layout_apart():
    x = jnp.arange(3.0)
    with pytest.raises(ValueError, match="different types at key path"):
        jax.tree.map(jnp.add, Plus(x), Minus(x))
    with pytest.raises(TypeError, match="same pytree structure"):
        jax.lax.cond(True, lambda: Plus(x), lambda: Minus(x))
    seen = []
    compiled = jax.jit(lambda v: seen.append(type(v)))
    for v in (Plus(x), Minus(x), Plus(x), Minus(x)):
        compiled(v)
    assert seen == [Plus, Minus]


# --- known as soon as it is defined --------------------------------------------------


MODULE = """
import dataclasses, jax, jaxrewrite

class Plain(jaxrewrite.ArrayValue):
    x: jax.Array
    def materialise(self):
        return self.x

class Base(jaxrewrite.ArrayValue):
    def materialise(self):
        return self.x * 2

@dataclasses.dataclass
class Mutable(Base):
    x: jax.Array

@dataclasses.dataclass(frozen=True)
class Frozen(Base):
    x: jax.Array

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered(jaxrewrite.ArrayValue):
    x: jax.Array
    def materialise(self):
        return self.x

def made_inside(base):
    class Inside(base):
        pass
    return Inside

@dataclasses.dataclass
class Decorated(jaxrewrite.ArrayValue):
    x: jax.Array
    def materialise(self):
        return self.x

@jaxrewrite.register("neg")
def _(v: Decorated):
    return Decorated(-v.x)
"""

NAMES = ["Plain", "Mutable", "Frozen", "Decorated", "Registered"]

# It reads them in another process.
READ = """
import jax, jax.export, jax.numpy as jnp, pickle, sys, their_types
from jaxrewrite import values
treedefs, exported = pickle.load(open(sys.argv[1], "rb"))
made = [pickle.loads(t).unflatten([jnp.ones(3)]) for t in treedefs]
print([type(v).__name__ for v in made])
results = jax.export.deserialize(bytearray(exported)).call(made[:4] + [jnp.ones(3), made[5]])
print([type(v).__name__ for v in results])
"""


def test_types_are_pytrees_when_their_module_is_imported(tmp_path, monkeypatch):
    """Treedefs and exported programs that another process has made can be read."""
    (tmp_path / "their_types.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    their_types = importlib.import_module("their_types")
    made = [getattr(their_types, name)(jnp.ones(3)) for name in NAMES]
    made.append(values.Diagonal(jnp.ones(3)))
    their_types.Mutable(1.0).x = 2.0
    treedefs = [pickle.dumps(jax.tree.structure(v)) for v in made]
    fn = jax.jit(jaxrewrite.transform(lambda vs: vs[:4] + [-vs[5]]))
    exported = jax.export.export(fn)(made[:4] + [jnp.ones(3), made[5]]).serialize()
    (tmp_path / "saved").write_bytes(pickle.dumps((treedefs, bytes(exported))))
    sys.modules.pop("their_types")

    root = str(pathlib.Path(jaxrewrite.__file__).parents[1])
    command = [sys.executable, "-c", READ, str(tmp_path / "saved")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(tmp_path)])}
    run = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == [
        str([*NAMES, "Diagonal"]),
        str([*NAMES[:4], "Diagonal"]),
    ]


def test_a_class_is_a_pytree_when_the_next_one_is_defined():
    class Whole(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    class WithNew(Whole):
        def __new__(cls, *args):
            return super().__new__(cls)

    class Base(jaxrewrite.ArrayValue):
        """Has no dense form yet."""

    class Next(jaxrewrite.ArrayValue):
        pass

    register = lambda cls: jax.tree_util.register_pytree_node(cls, vars, lambda *_: None)
    with pytest.raises(ValueError, match="Duplicate"):
        register(Whole)
    for cls in (WithNew, Base):
        register(cls)


def test_a_class_with_a_new_of_its_own():
    class Counted(jaxrewrite.ArrayValue):
        x: jax.Array
        made = 0

        def __new__(cls, x):
            cls.made += 1
            return super().__new__(cls)

        def materialise(self):
            return self.x

    value = Counted(jnp.ones(2))
    again = jax.tree.map(lambda x: 2 * x, value)
    assert type(again) is Counted and Counted.made == 1
    np.testing.assert_array_equal(again.x, 2)


def test_a_base_without_fields_decides_nothing_about_being_frozen():
    class Base(jaxrewrite.ArrayValue):
        def materialise(self):
            return self.x

    @dataclasses.dataclass
    class Mutable(Base):
        x: jax.Array

    @dataclasses.dataclass(frozen=True)
    class Frozen(Base):
        x: jax.Array

    class Plain(Base):
        x: jax.Array

    value = Mutable(jnp.ones(2))
    value.x = jnp.zeros(2)
    for cls in (Frozen, Plain):
        with pytest.raises(dataclasses.FrozenInstanceError):
            cls(jnp.ones(2)).x = 1


def test_what_is_wrong_with_a_class_is_said_where_it_is_made():
    """And not where the next class is defined, of which nothing is wrong."""

    class Wrong(jaxrewrite.ArrayValue):
        x: jax.Array
        names: list = []  # noqa: RUF012

        def materialise(self):
            return self.x

    class Right(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    assert Right(X).shape == X.shape
    for _ in range(2):
        with pytest.raises(ValueError, match="mutable default"):
            Wrong(X)


class HasX(Protocol):
    x: Any


def test_a_class_may_implement_a_protocol():
    class Plus(jaxrewrite.ArrayValue, HasX):
        x: jax.Array

        def materialise(self):
            return self.x + 1

    v = Plus(X)
    assert len(jax.tree.leaves(v)) == 1
    got = jaxrewrite.transform(lambda v: v * 2, materialise="allow")(v)
    np.testing.assert_array_equal(got, 2 * (X + 1))


A_FAMILY = """
import dataclasses, typing
import jax, jaxrewrite

T = typing.TypeVar("T")

@dataclasses.dataclass{frozen}
class Mixin:
    pass

{decorators[0]}
class Base({mixin}jaxrewrite.ArrayValue, typing.Generic[T]):
    x: jax.Array
    {methods[0]}

{decorators[1]}
class Middle(Base[int]):
    y: jax.Array
    name: str = jaxrewrite.field(static=True)
    {methods[1]}

{decorators[2]}
class Last(Middle):
    z: jax.Array
    def materialise(self):
        return self.x + self.y + self.z
"""
DECORATORS = {
    "plain": "",
    "decorated": "@dataclasses.dataclass",
    "slots": "@dataclasses.dataclass(slots=True)",
    "frozen": "@dataclasses.dataclass(frozen=True)",
    "frozen slots": "@dataclasses.dataclass(frozen=True, slots=True)",
}
# Python lets nothing that is not frozen derive from what is.
FAMILIES = [
    "/".join(own)
    for kinds in (("decorated", "slots"), ("plain", "frozen", "frozen slots"))
    for own in itertools.product(kinds, repeat=3)
] + ["decorated/plain/plain", "slots/decorated/plain"]


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("abstract", [slow(0), 1, 2])
@pytest.mark.parametrize("kinds", every(5, FAMILIES))
def test_a_class_has_the_fields_of_its_bases_however_these_are_made(
    kinds, abstract, is_mixed, monkeypatch
):
    """Abstract bases and those of another library are dataclasses too, if they are decorated."""
    module = types.ModuleType("a_family")
    monkeypatch.setitem(sys.modules, "a_family", module)
    methods = ["..."] * abstract + ["def materialise(self): return self.x"] * (2 - abstract)
    source = A_FAMILY.format(
        frozen="(frozen=True)" if "frozen" in kinds else "",
        decorators=[DECORATORS[kind] for kind in kinds.split("/")],
        mixin="Mixin, " if is_mixed else "",
        methods=methods,
    )
    exec(source, vars(module))
    names = {"Base": "x", "Middle": "x y name", "Last": "x y name z"}
    for cls, own in names.items():
        assert [f.name for f in dataclasses.fields(vars(module)[cls])] == own.split()
    value = module.Last(jnp.ones(2), 2 * jnp.ones(2), "n", 3 * jnp.ones(2))
    copies = [
        pickle.loads(pickle.dumps(value)),
        copy.deepcopy(value),
        dataclasses.replace(value, name="n"),
        jax.tree.map(lambda leaf: leaf, value),
        jax.vmap(lambda v: v)(value),
        *([copy.replace(value, name="n")] if sys.version_info >= (3, 13) else []),
    ]
    for other in copies:
        assert jaxrewrite.same_structure(other, value)
        np.testing.assert_array_equal([other.x, other.y, other.z], [[1, 1], [2, 2], [3, 3]])
    doubled = jaxrewrite.transform(lambda v: 2 * v, materialise="allow")(value)
    np.testing.assert_array_equal(doubled, 12)


class Odd(jaxrewrite.ArrayValue):
    x: jax.Array

    @property
    def broken(self):
        return self.x.no_such_thing

    def materialise(self):
        return self.x


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("sum", r"transformed function, or call jaxrewrite.numpy.sum\(value\)"),
        ("dot", r"or call jaxrewrite.numpy.dot\(value\)"),
        ("at", r"transformed function, or on jaxrewrite.materialise\(value\)"),
        (
            "block_until_ready",
            r"transformed function, or on jaxrewrite.materialise\(value\)",
        ),
        ("unknown", r"'Odd' object has no attribute 'unknown'$"),
        ("broken", "no_such_thing"),
    ],
)
def test_attributes_that_arrays_have_and_values_do_not(name, way_out):
    v = Odd(jnp.ones(2))
    with pytest.raises(AttributeError, match=way_out):
        getattr(v, name)
    assert not hasattr(v, name) and not hasattr(v, "__no_such_thing__")
    with pytest.raises(AttributeError):
        getattr(copy.copy(object.__new__(Odd)), "x")  # noqa: B009 - before it has its fields


def test_what_a_type_may_define_is_in_the_docs():
    """Whoever adds a method should first see whether it follows from another one."""
    base, of_arrays = jaxrewrite.Value, jaxrewrite.ArrayValue
    names = {*vars(base), *(n for n in vars(of_arrays) if not hasattr(jax.Array, n))}
    hooks = {name for name in names if not name.startswith("_")}
    page = pathlib.Path(__file__).parents[2] / "docs" / "writing_types.rst"
    section = page.read_text().partition("What a type may define\n")[2]
    table = section.partition("\nA matrix\n")[0]
    assert hooks == set(re.findall(r"^   \* - ``(\w+)``$", table, re.M))
    assert len(hooks) <= 16


def test_a_default_that_takes_a_value_is_refused():
    """It is static, so that it would get the primitive in the place of the value."""
    with pytest.raises(
        TypeError, match=r"Own.default takes self, but .* @staticmethod above it"
    ):

        class Own(jaxrewrite.ArrayValue):
            x: jax.Array

            def materialise(self):
                return self.x

            def default(self, primitive, values, params):
                return NotImplemented
