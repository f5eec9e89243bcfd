"""`ArrayValue.axes`: how the leaves lie in the array, and all that follows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array
from oracle import allow

import jaxrewrite
from jaxrewrite import ArrayValue, testing, values
from jaxrewrite.testing import numbers


def repeated(x, shape):
    """An array in blocks, with an entry for each entry of another one."""
    for axis, n in enumerate(shape):
        x = jnp.repeat(x, n // max(x.shape[axis], 1), axis)
    return x


class Blocks(ArrayValue):
    codes: Array
    scale: Array
    axes = {"codes": "... i j", "scale": "... i/b j/c"}

    def materialise(self):
        return self.codes * repeated(self.scale, self.codes.shape)


class Fixed(ArrayValue):
    """Blocks of a size that the type says, of which the last of an axis may be smaller."""

    codes: Array
    scale: Array
    axes = {"codes": "... i j", "scale": "... i/2 j/4"}

    def materialise(self):
        scale = jnp.repeat(jnp.repeat(self.scale, 2, -2), 4, -1)
        rows, columns = self.codes.shape[-2:]
        return self.codes * scale[..., :rows, :columns]


class Factors(ArrayValue):
    a: Array
    b: Array
    axes = {"self": "... i j", "a": "... i r", "b": "... r j"}

    def materialise(self):
        return self.a @ self.b


class Rows(ArrayValue):
    """Any number of axes, and a shift that the entries of the last one share."""

    x: Array
    shift: Array
    axes = {"x": "... n", "shift": "..."}

    def materialise(self):
        return self.x + self.shift[..., None]


class Complex(ArrayValue):
    parts: tuple[Array, Array]
    axes = {"parts": "..."}

    def materialise(self):
        return self.parts[0] + 1j * self.parts[1]


class Steps(ArrayValue):
    """A step of ``block`` entries has one number, of a size that is metadata."""

    x: Array
    block: int = jaxrewrite.field(static=True)
    length: int = jaxrewrite.field(static=True)
    axes = {"self": "... i", "x": "... i/block", "length": "i"}

    def materialise(self):
        return jnp.repeat(self.x, self.block, -1)


class Diagonals(ArrayValue):
    """The type makes the last two axes."""

    d: Array
    axes = {"self": "... n m", "d": "... n_of_leaf"}

    def materialise(self):
        return self.d[..., None] * jnp.eye(self.d.shape[-1])


class Turned(ArrayValue):
    """The leaf has the axes of the array in another order, and one of length one."""

    x: Array
    axes = {"self": "... i j", "x": "j ... 1 i"}

    def materialise(self):
        return jnp.moveaxis(jnp.squeeze(self.x, -2), 0, -1)


class Digits(ArrayValue):
    """Each entry is a sum of numbers, along an axis that the array has not."""

    x: Array
    axes = {"self": "... i", "x": "... i r"}

    def materialise(self):
        return self.x.sum(-1)


class Around(ArrayValue):
    """A field that is a value."""

    inner: ArrayValue
    axes = {"inner": "..."}

    def materialise(self):
        return -self.inner


class Seeing(Around):
    rules_see_values = True

    def materialise(self):
        return -jaxrewrite.materialise(self.inner)


BLOCKS = Blocks(numbers((4, 6)).round(), numbers((2, 3)))
VALUES = {
    "blocks": BLOCKS,
    "one scale": Blocks(numbers((4, 6)).round(), numbers((1, 1))),
    "stack of blocks": Blocks(numbers((2, 4, 6)).round(), numbers((2, 4, 1))),
    "fixed blocks": Fixed(numbers((4, 8)).round(), numbers((2, 2))),
    "factors": Factors(numbers((4, 2)), numbers((2, 6))),
    "stack of factors": Factors(numbers((2, 4, 2)), numbers((2, 2, 6))),
    "rows": Rows(numbers((4, 6)), numbers((4,))),
    "row": Rows(numbers((6,)), numbers(())),
    "complex": Complex((numbers((4, 6)), -numbers((4, 6)))),
    "number": Complex((numbers(()), numbers(()))),
    "steps": Steps(numbers((3,)), 4, 12),
    "stack of steps": Steps(numbers((4, 3)), 2, 6),
    "diagonal": Diagonals(numbers((4,))),
    "stack of diagonals": Diagonals(numbers((2, 3, 4))),
    "turned": Turned(numbers((6, 1, 4))),
    "stack of turned": Turned(numbers((6, 2, 1, 4))),
    "around": Around(BLOCKS),
    "seeing": Seeing(BLOCKS),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_a_type_declares_is_right(name):
    testing.check_value(VALUES[name], only=["pytree", "aval", "axes", "stack", "shards"])


# --- moves ------------------------------------------------------------------------------

INDEX = jnp.array([2, 0, 3])

MOVES = {
    "transpose": lambda x: jnp.swapaxes(x, -1, -2),
    "transpose of a batch": lambda x: jnp.swapaxes(jnp.stack([x[None]] * 2)[0], 0, 1),
    "reverse": lambda x: x[::-1],
    "reverse of the last axis": lambda x: x[..., ::-1],
    "one more axis": lambda x: x[None],
    "one more axis behind": lambda x: x[..., None],
    "squeeze": lambda x: x[:1].squeeze(0),
    "repeat": lambda x: jnp.broadcast_to(x, (3, *x.shape)),
    "repeat along an axis": lambda x: jnp.broadcast_to(x[:1], x.shape),
    "split": lambda x: x.reshape(2, -1, *x.shape[1:]),
    "split the last axis": lambda x: x.reshape(*x.shape[:-1], -1, 2),
    "join": lambda x: x.reshape(-1, *x.shape[2:]),
    "join all": lambda x: x.reshape(-1),
    "other groups": lambda x: x.reshape(2, -1),
    "slice": lambda x: x[1:3],
    "slice of blocks": lambda x: x[..., 2:4],
    "slice within blocks": lambda x: x[..., 1:4],
    "steps": lambda x: x[::2, ...],
    "steps of the last axis": lambda x: x[..., ::2],
    "steps of the last two axes": lambda x: x[..., ::2, ::2],
    "nothing": lambda x: x[:0],
    "entry": lambda x: x[0],
    "dynamic slice": lambda x: lax.dynamic_slice_in_dim(x, INDEX[1], 2),
    "dynamic entry": lambda x: x[INDEX[1]],
    "dynamic slice of the last axis": lambda x: lax.dynamic_slice_in_dim(
        x, INDEX[1], 2, -1
    ),
    "rows": lambda x: x[INDEX % len(x)],
    "rows of rows": lambda x: x[jnp.stack([INDEX, INDEX]) % len(x)],
    "columns": lambda x: x[..., INDEX % x.shape[-1]],
    "entries": lambda x: x[INDEX % len(x), ..., INDEX % x.shape[-1]],
    "rows in small integers": lambda x: x[jnp.array([1, 0], jnp.uint8)],
    "rows, some filled": lambda x: jnp.take(x, jnp.array([1, 9]), 0, fill_value=3),
    "concatenate": lambda x: jnp.concatenate([x, x[:1], x[::-1]]),
    "concatenate along the last axis": lambda x: jnp.concatenate([x, x[..., :2]], -1),
    "stack": lambda x: jnp.stack([x, x[::-1]]),
    "stack behind": lambda x: jnp.stack([x, x[::-1]], -1),
    "unstack": jnp.unstack,
    "parts": lambda x: jnp.split(x, 2, -1),
    "tile": lambda x: jnp.tile(x, 2),
    "no columns": lambda x: x[..., :0],
    "nothing at the end": lambda x: x[x.shape[0] :],
    "choose": lambda x: jnp.where(INDEX[0] > 0, x, x[::-1]),
    "scan": lambda x: lax.scan(lambda c, row: (c + row.sum(), 2 * row), 0.0, x),
    "scan backwards": lambda x: lax.scan(lambda c, r: (c, r), 0, x, reverse=True)[1],
    "map": lambda x: lax.map(lambda row: row[..., ::-1], x),
    "branch": lambda x: lax.cond(INDEX[0] > 0, lambda: x[::-1], lambda: x),
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, x: x[::-1], x),
    "vmap": lambda x: jax.vmap(lambda row: row[..., ::-1])(x),
    "vmap of the last axis": lambda x: jax.vmap(lambda c: c[::-1], -1, -1)(x),
}


def runs(move, x):
    """Whether dense code has a result."""
    try:
        jax.eval_shape(move, x)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return False
    return True


def stays(move, value):
    """Whether a program is implicit, with a result that is a value of the type."""
    try:
        result = jaxrewrite.transform(move, materialise="forbid")(value)
    except jaxrewrite.MaterialisationError:
        return False
    return all(
        isinstance(x, type(value)) for x in jax.tree.leaves(result, is_leaf=is_value)
    )


def is_value(x):
    return isinstance(x, jaxrewrite.Value)


# Results that the types can't say, or that are arrays.
BECOMES_DENSE = {
    "fixed blocks": {
        *("columns", "concatenate", "concatenate along the last axis", "dynamic entry"),
        *("dynamic slice", "dynamic slice of the last axis", "entries", "entry", "join"),
        *("join all", "map", "other groups", "rows", "rows in small integers"),
        *("rows of rows", "rows, some filled", "scan", "slice", "squeeze", "stack behind"),
        *("steps", "steps of the last axis", "steps of the last two axes", "tile"),
        *("transpose", "unstack"),
    },
    "complex": {"rows, some filled", "scan"},
    "blocks": {
        *("dynamic entry", "entries", "entry", "join", "join all", "map"),
        *("rows, some filled", "scan", "squeeze", "unstack"),
    },
    "rows": {
        *("concatenate along the last axis", "entries", "join", "join all"),
        *("one more axis behind", "other groups", "rows, some filled", "scan"),
        *("stack behind", "tile", "transpose"),
    },
}


@pytest.mark.parametrize("name", BECOMES_DENSE)
def test_what_stays_implicit(name):
    value, dense = VALUES[name], VALUES[name].materialise()
    moves = {k: move for k, move in MOVES.items() if runs(move, dense)}
    assert {k for k in moves if not stays(moves[k], value)} == BECOMES_DENSE[name]


# The programs are many and small: compiling them well takes longer than running them.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def program_of(value):
    """All moves of which dense code has a result."""
    dense = jaxrewrite.materialise(value)
    moves = {k: move for k, move in MOVES.items() if runs(move, dense)}
    assert len(moves) > 25 or value.ndim < 2
    return lambda x: {k: move(x) for k, move in moves.items()}


def compare(implicit, dense, *operands):
    """Compare the results of two functions, compiled as one program."""
    both = lambda *xs: (jaxrewrite.materialise(implicit(*xs)), dense(*xs))
    got, want = jax.jit(both, compiler_options=QUICKLY)(*operands)
    for k in want:
        for g, w in zip(*map(jax.tree.leaves, (got[k], want[k])), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5, err_msg=k)


@pytest.mark.parametrize("name", VALUES)
def test_moves_agree_with_dense_code(name):
    program = program_of(VALUES[name])
    compare(allow(program), lambda v: program(jaxrewrite.materialise(v)), VALUES[name])


@pytest.mark.parametrize(
    "name", ["blocks", "factors", "rows", "stack of steps", "diagonal"]
)
def test_moves_of_what_is_mapped_agree(name):
    program = program_of(VALUES[name])
    stack = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), VALUES[name])
    implicit = lambda v: jaxrewrite.materialise(allow(program)(v))
    dense = lambda v: program(jaxrewrite.materialise(v))
    compare(jax.vmap(implicit), jax.vmap(dense), stack)


@pytest.mark.parametrize("name", ["blocks", "factors", "steps"])
def test_derivatives_of_moves_agree(name):
    program = program_of(VALUES[name])

    def total(fn):
        squares = lambda v: sum(jnp.sum(y**2) for y in jax.tree.leaves(fn(v)))
        return lambda v: {"gradient": jax.tree.leaves(jax.grad(squares)(v))}

    implicit = lambda v: jaxrewrite.materialise(allow(program)(v))
    dense = lambda v: program(jaxrewrite.materialise(v))
    compare(total(implicit), total(dense), VALUES[name])


# --- declarations that are wrong ----------------------------------------------------------


def declares(axes, **fields):
    """A class with these axes; ``fields`` tells whether each is metadata."""
    body = {"__annotations__": dict.fromkeys(fields or {"x": 0, "y": 0}, Array)}
    body |= {
        k: jaxrewrite.field(static=True) for k, is_static in fields.items() if is_static
    }
    return type("Wrong", (ArrayValue,), body | {"axes": axes, "materialise": lambda v: v.x})


@pytest.mark.parametrize(
    "axes, why",
    [
        ("i j", "it is a str, but must be a dict of strings"),
        ({"x": "i", "y": 3}, "'y' has 3 in place of a string"),
        ({"x": "i", "z": "i"}, "'z' is no field of the class, whose fields are 'x', 'y'"),
        ({"x": "i"}, "it does not say which axes the field 'y' has"),
        ({"x": "i i", "y": ""}, "'x' has the axis 'i' twice"),
        ({"x": "i, j", "y": ""}, "'x' has 'i,', which is none of"),
        ({"x": "i/0", "y": ""}, "'x' has 'i/0', which is none of"),
        ({"x": "i", "y": "..."}, "'y' has '...', and the array has not"),
        ({"x": "i", "y": "j/b"}, "'y' has 'j' in blocks, which is no axis of the array"),
        ({"x": "i j", "y": "i/j"}, "'y' has blocks of the size 'j', which is an axis"),
        (
            {"x": "i", "y": "i/x"},
            "'y' has blocks of the size 'x', a field that holds arrays",
        ),
        ({"x": "i/b", "y": "i"}, "the array has the axes 'i/b', which may be names"),
        ({"x": "*r i", "y": "i"}, r"'\*r i', .* alone. Say by the key 'self' which"),
        (
            {"self": "*r i", "x": "*r", "y": "i"},
            r"'\*r i', .* alone. The array has axes of any number by '...'.$",
        ),
        ({"self": "i 3", "x": "i", "y": "i"}, "the array has the axes 'i 3'"),
        ({"self": "k i", "x": "i", "y": ""}, "no field has the axis 'k'.* come last"),
        ({"self": "... i", "x": "i", "y": ""}, "no field has '...', which the array has"),
        ({"x": "*a *b", "y": ""}, "'x' has several terms for any number"),
        ({"self": "i", "x": "*a i *b", "y": ""}, "'x' has several terms for any number"),
        ({"self": "*a i *b", "x": "i", "y": ""}, "'self' has several terms for any number"),
    ],
)
def test_a_wrong_declaration_is_an_error_where_the_class_is_defined(axes, why):
    with pytest.raises(TypeError, match=rf"^Wrong\.axes: .*{why}"):
        declares(axes)


def test_wrong_static_fields_are_an_error():
    with pytest.raises(
        TypeError, match=r"^Wrong\.axes: 'n' is a static field.* 'r' is not"
    ):
        declares({"x": "i r", "self": "i", "n": "r"}, x=False, n=True)
    with pytest.raises(
        TypeError, match=r"^Wrong\.axes: 'n' is a static field.* 'i/b' is not"
    ):
        declares({"x": "i", "n": "i/b"}, x=False, n=True)


def test_a_field_that_a_subclass_adds_is_an_error():
    with pytest.raises(
        TypeError, match=r"^More\.axes, declared by Rows: .* the field 'more'"
    ):

        class More(Rows):
            more: Array

    with pytest.raises(
        TypeError, match=r"^Bare\.axes, declared by Annotated: 'array' is no field"
    ):

        class Bare(jaxrewrite.values.Annotated):
            data: Array

    class Undeclared(Rows):
        more: Array
        axes = None

    v = Undeclared(jnp.ones((2, 3)), jnp.ones(2), jnp.ones(()))
    assert isinstance(
        jaxrewrite.make_jaxpr(lambda v: v[None], materialise="allow")(v), object
    )
    with pytest.raises(jaxrewrite.MaterialisationError):
        jaxrewrite.transform(lambda v: v[None], materialise="forbid")(v)


def test_other_attributes_of_this_name_are_no_declaration():
    class Field(ArrayValue):
        x: Array
        axes: tuple[int, ...] = jaxrewrite.field(static=True, default=())

        def materialise(self):
            return self.x

    class Method(ArrayValue):
        x: Array

        def axes(self):
            return self.x.ndim

        def materialise(self):
            return self.x

    assert Field(jnp.ones(2)).axes == ()
    assert Method(jnp.ones(2)).axes() == 1


class Misdeclared(Blocks):
    """The entries depend on the place, too."""

    def materialise(self):
        return super().materialise() + jnp.arange(self.codes.shape[-1])


class NoBatch(Blocks):
    axes = {"codes": "... i j", "scale": "... r s"}

    def materialise(self):
        return self.codes * self.scale.mean()


class OtherSizes(Blocks):
    axes = {"codes": "... i j", "scale": "... i/3 j/c"}


@pytest.mark.parametrize(
    "cls, why",
    [
        (
            Misdeclared,
            "says where the entries of leaves belong, but the reverse along axis 1",
        ),
        (NoBatch, r"begins with '\.\.\.', but with one more axis in front"),
        (
            OtherSizes,
            r"'scale', of shape \(2, 3\), has axis 0 of the array, .* blocks of 3",
        ),
    ],
)
def test_check_value_finds_what_is_wrong(cls, why):
    v = cls(BLOCKS.codes, BLOCKS.scale)
    with pytest.raises(AssertionError, match=why):
        testing.check_value(v, only=["axes"])


class Single(ArrayValue):
    codes: Array
    scale: Array
    axes = {"codes": "i j", "scale": "i/b j/c"}

    def materialise(self):
        return self.codes * repeated(self.scale, self.codes.shape)


class Cut(ArrayValue):
    """Rows with zeros from an entry on, which leave out what else there is of the lengths."""

    x: Array
    lengths: Array
    axes = {"self": "... t", "x": "... t", "lengths": "..."}

    def aval(self):
        return jax.typeof(self.x)

    def materialise(self):
        rows, columns = self.x.shape
        return jnp.where(jnp.arange(columns) < self.lengths[:rows, None], self.x, 0)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize(
    "move",
    {
        "slice": lambda v: v[1:],
        "rev": lambda v: v[::-1],
        "concatenate": lambda v: jnp.concatenate([v, v]),
        "dynamic_slice": lambda v: lax.dynamic_slice_in_dim(v, 1, 1),
        "gather": lambda v: v[jnp.array([1, 0])],
        "select_n": lambda v: lax.select(True, v, v),
        "scan": lambda v: lax.scan(lambda c, row: (c, 2 * row), 0, v)[1],
    }.items(),
    ids=lambda move: move[0],
)
def test_a_leaf_of_another_length_than_its_axis_is_an_error(move, count):
    v = Cut(jnp.ones((2, 4)), jnp.ones(count, int))
    told = rf"Cut.axes .*'lengths' .*'...'; it has shape \({count},\).* axis 0 .*\(2, 4\)"
    with pytest.raises(TypeError, match=told):
        allow(move[1])(v)


def test_a_type_without_batches_is_stacked_as_batched():
    v = Single(BLOCKS.codes, BLOCKS.scale)
    stack = jaxrewrite.transform(lambda v: lax.scan(lambda c, _: (c, v.T), 0, None, 3)[1])(
        v
    )
    assert type(stack) is jaxrewrite.Batched and type(stack.element) is Single
    assert stack.shape == (3, 6, 4)
    v = jax.vmap(lambda v, _: v, (None, 0))(v, jnp.ones(2))
    with pytest.raises(TypeError, match=r"Single\.axes says.*leaves jax\.vmap"):
        v.shape  # noqa: B018 - a property that raises


def test_a_leaf_with_more_axes_than_the_array_is_written_along_those_of_the_array():
    v, part = Digits(numbers((5, 2))), Digits(numbers((2, 2)))
    write = lambda x, part: lax.dynamic_update_slice(x, part, (INDEX[0],))
    written = jaxrewrite.transform(write, materialise="forbid")(v, part)
    want = write(v.materialise(), part.materialise())
    np.testing.assert_allclose(written.materialise(), want, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
def test_a_part_with_a_leaf_that_is_repeated_along_its_axes_is_written_dense():
    """One leaf has the axes that its type says, and the other has fewer."""
    v, part = Rows(numbers((4, 3)), numbers((4,))), Rows(numbers((2, 3)), numbers(()))
    write = lambda x, part: lax.dynamic_update_slice(x, part, (INDEX[0], 0))
    written = jaxrewrite.transform(write)(v, part)
    testing.assert_same(written, write(v.materialise(), part.materialise()))


@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
def test_a_part_in_other_blocks_along_one_of_its_axes_is_written_dense():
    """Its rows share a scale, which the rows of the array may have each. Three blocks are not two."""
    v, part = (
        Blocks(numbers((4, 6)), numbers((4, 2))),
        Blocks(numbers((2, 6)), numbers((1, 3))),
    )
    write = lambda x, part: lax.dynamic_update_slice(x, part, (INDEX[0], 0))
    written = jaxrewrite.transform(write)(v, part)
    testing.assert_same(written, write(v.materialise(), part.materialise()))


def test_a_part_that_would_reach_beyond_the_end_is_written_at_the_end():
    v, part = Digits(numbers((5, 2))), Digits(numbers((2, 2)))
    write = lambda x, part: lax.dynamic_update_slice(x, part, (jnp.int32(4),))
    written = jaxrewrite.transform(write, materialise="forbid")(v, part)
    testing.assert_same(written.materialise(), write(v.materialise(), part.materialise()))


def test_a_slice_of_whole_blocks_has_a_scale_for_each():
    part = jaxrewrite.transform(lambda v: v[:2, :4], materialise="forbid")(BLOCKS)
    assert part.codes.shape == (2, 4) and part.scale.shape == (1, 2)
    every_second = jaxrewrite.transform(lambda v: v[:, ::2], materialise="forbid")(BLOCKS)
    assert every_second.scale.shape == (2, 3)


class Fours(ArrayValue):
    """Each entry four times: no leaf tells the length of a part of a block."""

    x: Array
    axes = {"self": "... i", "x": "... i/4"}

    def materialise(self):
        return jnp.repeat(self.x, 4, -1)


@pytest.mark.parametrize(
    ("move", "cls"),
    [
        (lambda v: v[:4], Fours),
        (lambda v: v[4:], Fours),
        (lambda v: v.reshape(3, 4), Fours),
        (lambda v: v[:2], jax.Array),
        (lambda v: v.reshape(6, 2), jax.Array),
        (lambda v: lax.broadcast_in_dim(v, (12, 2), (0,)), jax.Array),
    ],
)
def test_a_part_of_a_block_has_no_form_where_no_leaf_tells_its_length(move, cls):
    v = Fours(numbers(3))
    moved = jaxrewrite.transform(move, materialise="allow")(v)
    assert isinstance(moved, cls)
    testing.assert_same(jaxrewrite.materialise(moved), move(v.materialise()))


class Tiles(ArrayValue):
    """Blocks that are square, and as deep as is said apart; their sizes are metadata."""

    codes: Array
    scale: Array
    width: int = jaxrewrite.field(static=True)
    depth: int = jaxrewrite.field(static=True)
    axes = {"codes": "... i j k", "scale": "... i/width j/width k/depth"}

    def materialise(self):
        return self.codes * repeated(self.scale, self.codes.shape)


@pytest.mark.parametrize(
    "part, width",
    [
        (lambda v: v[:4, 4:], 4),
        (lambda v: v[2:6, 2:6], 2),
        (lambda v: v[:, 2:6], None),
        (lambda v: v[2:6], None),
    ],
)
def test_blocks_of_one_width_have_it_along_each_axis(part, width):
    v = Tiles(numbers((8, 8, 2)), numbers((2, 2, 1)), 4, 2)
    got = jaxrewrite.transform(part, materialise="allow")(v)
    assert getattr(got, "width", None) == width if width else isinstance(got, jax.Array)
    testing.assert_same(jaxrewrite.materialise(got), part(v.materialise()))


def test_a_window_may_begin_within_a_block_or_reach_beyond_the_end():
    window = lambda v, start: lax.dynamic_slice_in_dim(v, start, 2)
    implicit = jaxrewrite.transform(window, materialise="forbid")
    for start in (1, 3):
        want = window(BLOCKS.materialise(), start)
        testing.assert_same(implicit(BLOCKS, jnp.int32(start)).materialise(), want)


def test_indices_of_few_bits_may_be_fewer_than_the_entries():
    """JAX does not convert these: 300 is no number of 8 bits."""
    v = Steps(numbers((3,)), 100, 300)
    rows = jnp.array([1, 100], jnp.int8)
    for fn in (
        lambda v: jnp.take(v, rows, 0, mode="clip"),
        lambda v: lax.dynamic_index_in_dim(v, rows[1]),
    ):
        got = jaxrewrite.transform(fn, materialise="allow")(v)
        testing.assert_same(jaxrewrite.materialise(got), fn(v.materialise()))


class Shifted(ArrayValue):
    """All rows have one shift, which has no axis for them."""

    x: Array
    shift: Array
    axes = {"x": "... n", "shift": "n"}

    def materialise(self):
        return self.x + self.shift


def test_a_leaf_without_the_first_axis_is_not_sliced():
    v = Shifted(numbers((6, 6)), numbers((6,)))
    assert v.sliceable() is NotImplemented
    fn = lambda v: lax.map(lambda row: row - 1, v)
    rows = jaxrewrite.transform(fn, materialise="allow")(v)
    testing.assert_same(rows, v.materialise() - 1)


def test_rows_of_stacks_of_stacks_are_taken_with_the_axes_that_the_type_makes():
    v = Diagonals(numbers((2, 4, 3)))
    take = jaxrewrite.transform(lambda v, i: v[i], materialise="forbid")
    taken = jax.eval_shape(take, v, jnp.array([1, 0, 1]))
    assert type(taken) is Diagonals and taken.d.shape == (3, 4, 3)


class Sized(ArrayValue):
    """The sizes of all axes are metadata, which a slice and a stack of it have to follow."""

    x: Array
    sizes: tuple[int, ...] = jaxrewrite.field(static=True)
    axes = {"x": "... n", "sizes": "... n"}

    def materialise(self):
        return jnp.sin(self.x).reshape(self.sizes)


def test_sizes_that_are_metadata_follow_slices_and_stacks():
    v = Sized(numbers((2, 3, 4)), (2, 3, 4))
    sums = lambda v: lax.scan(lambda c, rows: (c + rows.sum(), None), 0.0, v)[0]
    jaxpr = jax.make_jaxpr(jaxrewrite.transform(sums, materialise="allow"))(v)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["scan"]
    stack = jaxrewrite.transform(lambda v: lax.scan(lambda c, _: (c, v), 0, None, 5)[1])
    assert jax.eval_shape(stack, v).sizes == (5, 2, 3, 4)


# --- meshes, and classes of other libraries -------------------------------------------------


def test_leaves_are_split_as_the_array():
    specs = BLOCKS.leaf_specs(P("x", None))
    assert (specs.codes, specs.scale) == (P("x", None), P("x", None))
    specs = VALUES["one scale"].leaf_specs(P(None, "x"))
    assert (specs.codes, specs.scale) == (P(None, "x"), P(None, None))
    specs = VALUES["factors"].leaf_specs(P("x", "y"))
    assert (specs.a, specs.b) == (P("x", None), P(None, "y"))
    assert VALUES["rows"].leaf_specs(P("x")).shift == P("x")
    assert VALUES["turned"].leaf_specs(P("x")).x == P(None, None, "x")
    # A shard would have another length, and the type makes the diagonal of the whole.
    assert VALUES["steps"].leaf_specs(P("x")) is NotImplemented
    assert VALUES["stack of steps"].leaf_specs(P("x")).x == P("x", None)
    assert VALUES["diagonal"].leaf_specs(P("x")) is NotImplemented


@pytest.fixture
def on_mesh():
    """A function of shards, for an array and a result that are split in the same way."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return lambda fn, spec: jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec)


@pytest.mark.parametrize("name", ["blocks", "factors", "rows", "complex"])
@pytest.mark.parametrize("spec", [P("x"), P("x", "y"), P(None, "x")])
def test_programs_on_a_mesh_get_shards_of_the_leaves(name, spec, on_mesh):
    value = VALUES[name]
    if name == "blocks":  # Each block is on one device.
        value = Blocks(value.codes[:, :4], value.scale[:, :2])
    if name in ("rows", "complex"):
        value = jax.tree.map(lambda x: x[:, :4] if x.ndim > 1 else x, value)
    program = on_mesh(lambda v: 2 * jnp.asarray(v[::-1]), spec)
    with pytest.raises(jaxrewrite.MaterialisationError, match="'mul'"):
        jaxrewrite.transform(program, materialise="forbid")(value)
    got = jax.jit(lambda v: jaxrewrite.materialise(allow(program)(v)))(value)
    np.testing.assert_allclose(got, jax.jit(program)(value.materialise()), rtol=1e-5)


# --- ready types ------------------------------------------------------------------------


MATRICES = {
    "diagonal": lambda: values.Diagonal(numbers((3,))),
    "circulant": lambda: values.Circulant(numbers((3,))),
    "tridiagonal": lambda: values.Tridiagonal(numbers((2,)), numbers((3,)), numbers((2,))),
    "permutation": lambda: values.Permutation(jnp.array([2, 0, 1])),
    "kronecker": lambda: values.Kronecker((numbers((2, 2)), numbers((2, 2)))),
    "product": lambda: values.Circulant(numbers((3,))) @ values.Diagonal(numbers((3,))),
    "sum": lambda: values.Circulant(numbers((3,))) + values.Diagonal(numbers((3,))),
}

OF_STACKS = {
    "matrices": lambda v: v[INDEX],
    "matrix": lambda v: v[INDEX[1]],
    "dynamic slice": lambda v: lax.dynamic_slice_in_dim(v, INDEX[1], 2),
    "reverse": lambda v: v[::-1],
    "slice": lambda v: v[1:3],
    "split": lambda v: v.reshape(2, 2, *v.shape[1:]),
    "repeat": lambda v: jnp.broadcast_to(v, (2, *v.shape)),
    "transpose": lambda v: v[None].transpose(1, 0, 3, 2),
    "concatenate": lambda v: jnp.concatenate([v, v[::-1]]),
    "choose": lambda v: jnp.where(INDEX[0] > 0, v, v[::-1]),
    "stack": lambda v: jnp.stack([v, v]),
    "parts": lambda v: jnp.split(v, 2),
    "scan": lambda v: lax.scan(lambda c, m: (c, m.T), 0, v)[1],
}


@pytest.mark.parametrize("name", MATRICES)
def test_moves_of_stacks_of_matrices_keep_the_structure(name):
    one = MATRICES[name]()
    scaled = lambda x, k: x * k if jnp.issubdtype(x.dtype, jnp.floating) else x
    stack = jax.tree.map(lambda x: jnp.stack([scaled(x, k) for k in range(4)]), one)
    program = lambda v: {k: move(v) for k, move in OF_STACKS.items()}
    implicit = jaxrewrite.transform(program, materialise="forbid")
    results = jax.tree.leaves(jax.eval_shape(implicit, stack), is_leaf=is_value)
    assert all(map(is_value, results)) and len(results) == len(OF_STACKS) + 1
    compare(implicit, lambda v: program(jaxrewrite.materialise(v)), stack)


def test_stacks_of_matrices_are_split_over_a_mesh(on_mesh):
    stack = values.Diagonal(numbers((4, 3)))
    program = on_mesh(lambda v: v[::-1], P("x"))
    got = jaxrewrite.transform(program, materialise="forbid")(stack)
    assert type(got) is values.Diagonal
    np.testing.assert_allclose(got.materialise(), program(stack.materialise()))


def test_a_dataclass_by_its_own_decorator():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Own(ArrayValue):
        x: Array
        length: int = dataclasses.field(metadata={"static": True})
        axes = {"x": "i", "length": "i"}

        def materialise(self):
            return self.x

    rows = jaxrewrite.transform(lambda v: v[1:3], materialise="forbid")(
        Own(jnp.arange(4.0), 4)
    )
    assert rows.length == 2


def test_a_module_of_equinox():
    eqx = pytest.importorskip("equinox")

    class Module(eqx.Module, ArrayValue):
        x: Array
        length: int = eqx.field(static=True)
        axes = {"x": "i", "length": "i"}

        def materialise(self):
            return self.x

    rows = jaxrewrite.transform(lambda v: v[1:3], materialise="forbid")(
        Module(jnp.ones(4), 4)
    )
    assert type(rows) is Module and rows.length == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUES)
def test_everything_agrees_with_dense_code(name):
    testing.check_value(VALUES[name])
