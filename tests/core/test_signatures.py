"""`inspect.signature` of a value type says its fields."""

import dataclasses
import inspect

import jax

import jaxrewrite
from jaxrewrite import values


# What the constructors of ready types take in place of the fields, or call otherwise.
OWN = {
    "FakeQuantised": ["w", "bits", "axis", "block", "symmetric"],
    "Identity": ["rows", "of_dtype", "of_batch"],
    "Sparse": ["matrix", "by_columns"],
}


def names(cls):
    return [n for n in inspect.signature(cls).parameters if not n.startswith("_")]


def test_the_signatures_of_ready_types_say_their_fields():
    for name in sorted(dir(values)):
        cls = getattr(values, name)
        if inspect.isclass(cls) and issubclass(cls, jaxrewrite.Value):
            fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
            due = OWN.get(name, [f.name for f in fields if f.init and f.name[0] != "_"])
            assert sorted(names(cls)) == sorted(due), name


def test_the_signature_of_the_class_that_was_defined_last():
    class Last(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    assert names(Last) == ["x"]


def plain(cls):
    return cls


def test_the_signatures_of_types_of_ones_own():
    @plain
    class Decorated(values.Matrix):
        """A class with a decorator, of which there is no instance."""

        v: jax.Array
        n: int = jaxrewrite.field(static=True, default=3)

        def aval(self):
            return jax.core.ShapedArray((self.n, self.n), self.v.dtype)

        def materialise(self):
            return self.v

        def apply(self, x, axis, precision=None):
            return x

        def transposed(self):
            return self

    class Unfinished(values.Coded):
        codes: jax.Array
        scale: jax.Array

    class Own(values.Structured):
        x: jax.Array

        def __init__(self, x, *, by=1):
            vars(self).update(x=x * by)

        def materialise(self):
            return self.x

    class Derived(Own):
        y: jax.Array

    @jax.tree_util.register_pytree_node_class
    class Registered(jaxrewrite.ArrayValue):
        def __init__(self, z):
            self.z = z

        def materialise(self):
            return self.z

        def tree_flatten(self):
            return (self.z,), None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls(*leaves)

    assert names(Decorated) == ["v", "n"]
    assert names(Unfinished) == ["codes", "scale"]
    assert names(Own) == ["x", "by"]
    assert names(Derived) == ["x", "y"]
    assert names(Registered) == ["z"]
    assert Registered(1).z == 1
    for base in (jaxrewrite.ArrayValue, values.Matrix, values.Coded):
        assert names(base) == []
