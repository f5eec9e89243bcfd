"""What users see of a value: its numbers, or a summary, and its picture in notebooks."""

import html.parser

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import treescope

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.values import (
    Diagonal,
    Interval,
    Lora,
    LowRank,
    Masked,
    Named,
    OneHot,
    Quantised,
    Tagged,
    Unitful,
    Zero,
)


class Scaled(jaxrewrite.ArrayValue):
    x: jax.Array
    scale: jax.Array
    name: str = jaxrewrite.field(static=True, default="none")

    def materialise(self):
        return self.x * self.scale


def test_a_text_that_names_the_dtype_is_shown():
    for name in ("f", "float32"):
        v = Scaled(jnp.ones(2), jnp.float32(1), name)
        assert f"name={name!r}" in repr(v)
    assert "name" not in repr(Scaled(jnp.ones(2), jnp.float32(1)))


class Corners(jaxrewrite.ArrayValue):
    """A stranger's type with structure, which says nothing about it."""

    x: jax.Array

    def materialise(self):
        return jnp.zeros((3, 3), self.x.dtype).at[0, 2].set(self.x[0]).at[2, 0].set(7)


class Measured(jaxrewrite.ArrayValue):
    x: jax.Array
    error: jax.Array

    def materialise(self):
        raise TypeError("it is not exact")

    def aval(self):
        return jax.typeof(self.x)

    def picture(self):
        return self.x, " ± ", self.error


D = Diagonal(jnp.array([1.0, 2.5, 0.0]))
DIAGONAL = """\
Diagonal([[1.    ·   ·]
          [  · 2.5   ·]
          [  ·   · 0. ]], dtype=float32)"""


def test_structure_is_shown_by_dots():
    assert repr(D) == DIAGONAL
    assert str(Corners(jnp.zeros(1))) == "[[ ·  · 0.]\n [ ·  ·  ·]\n [7.  ·  ·]]"
    assert str(OneHot(jnp.array([2, 0]), 3)) == "[[ ·  · 1.]\n [1.  ·  ·]]"
    assert repr(Zero((2,))) == "Zero([· ·], dtype=float32)"
    # Zeros that are stored are numbers, also those among codes.
    weight = Quantised.quantise(jnp.eye(2), 8, axis=-1)
    assert str(weight) == "[[1. 0.]\n [0. 1.]]"
    assert str(Diagonal(jnp.arange(2))) == "[[0 ·]\n [· 1]]"
    assert str(Diagonal(jnp.array([np.nan, np.inf]))) == "[[nan   ·]\n [  · inf]]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Scaled(jnp.ones(2), 2.0), "Scaled([2. 2.], dtype=float32)"),
        (Scaled(np.ones(2), 2.0, "x"), "Scaled([2. 2.], name='x', dtype=float32)"),
        (Unitful(jnp.arange(3.0), "m"), "Unitful([0. 1. 2.] m, dtype=float32)"),
        (Unitful(jnp.arange(2), "1"), "Unitful([0 1], dtype=int32)"),
        (Named(jnp.ones(2), ["time"]), "Named([1. 1.] (time), dtype=float32)"),
        (Tagged(jnp.ones(1), {"b", "a"}), "Tagged([1.] #a #b, dtype=float32)"),
        (
            Masked(jnp.arange(3), jnp.array([False, True, False])),
            "Masked([ 0 --  2], dtype=int32)",
        ),
        (
            Interval(jnp.zeros(2), jnp.ones(2)),
            "Interval([0. 0.] to [1. 1.], dtype=float32)",
        ),
        (
            Unitful(Masked(jnp.ones(2), jnp.array([True, False])), "kg"),
            "Unitful[Masked]([-- 1.] kg, dtype=float32)",
        ),
        (
            Named(Unitful(D, "m"), "ij"),
            DIAGONAL.replace("Diagonal(", "Named[Unitful[Diagonal]](")
            .replace("\n", "\n" + 16 * " ")
            .replace("]], ", "]] m (i, j), "),
        ),
        (Diagonal(jnp.ones(0)), "Diagonal([], shape=(0, 0), dtype=float32)"),
        (Measured(jnp.ones(1), jnp.zeros(1)), "Measured([1.] ± [0.], dtype=float32)"),
        (Diagonal(jnp.ones(1, "bfloat16")), "Diagonal([[1]], dtype=bfloat16)"),
        (Diagonal(jnp.array([True])), "Diagonal([[ True]], dtype=bool)"),
        (
            jaxrewrite.stack([Scaled(1.0, 2.0)]),
            "Batched[Scaled]([2.], length=1, dtype=float32)",
        ),
    ],
)
def test_numbers_and_what_they_carry(value, text):
    assert repr(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Scaled(jnp.float32(3.14159), 1.0), "3.14"),
        (Unitful(jnp.bfloat16(2.5), "m/s"), "2.50 m s^-1"),
        (Interval(jnp.float32(0), jnp.float32(1)), "0.00 to 1.00"),
        (Masked(jnp.float32(1), jnp.array(True)), "--"),
        (Measured(np.float32(1), np.float32(0.5)), "1.00 ± 0.50"),
        (Named(jnp.float32(1), ()), "1.00"),
    ],
)
def test_formats_of_scalars(value, text):
    assert f"{value:.2f}" == text
    assert f"{value}" == str(value)


def test_formats_of_others_say_what_to_do():
    with pytest.raises(
        TypeError, match=r"one number, and this Diagonal has the shape \(3, 3\)"
    ):
        f"{D:.2f}"
    told = []

    def program(x):
        with pytest.raises(TypeError, match="number of this Unitful, which is traced"):
            f"{x:.2f}"
        told.append(f"{x}")
        return x

    jax.jit(program)(Unitful(jnp.float32(1), "m"))
    assert told == ["Unitful<f32[], 4 B>(array=f32[], units=Units('m'))"]


def test_large_values_are_summarised_and_not_computed():
    class Counted(jaxrewrite.ArrayValue):
        x: jax.Array
        n: int = jaxrewrite.field(static=True)

        def materialise(self):
            if not isinstance(self.x, jax.core.Tracer):
                raise AssertionError("it was made dense")
            return jnp.ones(self.n) * self.x.sum()

    assert repr(Counted(jnp.ones(2), 101)) == "Counted(x=f32[2], n=101)"
    assert repr(Counted(jnp.ones(201), 2)) == "Counted(x=f32[201], n=2)"
    nested = Scaled(Diagonal(jnp.ones(11)), Scaled(1.0, 2.0))
    assert repr(nested) == (
        "Scaled(x=Diagonal<f32[11,11], 44 B>(d=f32[11]), "
        "scale=Scaled(x=1.0, scale=2.0, name='none'), name='none')"
    )


def test_it_is_shown_wherever_it_is(leak_checks):
    seen = []

    def program(v, x):
        seen.append(repr(D))
        assert repr(v) == "Diagonal<f32[3,3], 12 B>(d=f32[3])"
        return x

    jax.jit(program)(D, 1.0)
    jax.vmap(program, (0, None))(Diagonal(jnp.ones((2, 3))), 1.0)
    jax.grad(lambda x: program(jax.tree.map(lambda y: x * y, D), x))(1.0)
    jaxrewrite.transform(lambda v: [seen.append(repr(D)), v][1])(Scaled(1.0, 2.0))
    with jaxrewrite.no_materialise(), jax.transfer_guard("disallow"), jax.debug_nans(True):
        seen.append(repr(D))
    assert seen == 5 * [DIAGONAL]


def test_callbacks_show_numbers(capfd):
    @jax.jit
    def program(v):
        jax.debug.print("{} {:.1f}", v, Unitful(jnp.float32(2), "m"))
        return v

    jax.block_until_ready(program(Scaled(jnp.ones(2), 3.0)).x)
    jax.effects_barrier()
    assert capfd.readouterr().out == "[3. 3.] 2.0 m\n"


def test_repr_never_raises():
    deleted = Diagonal(jnp.ones(2))
    deleted.d.delete()

    class Refusing(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            raise RuntimeError("never")

        def picture(self):
            return self.y

    class Talking(Scaled):
        def materialise(self):
            seen.append(str(self))
            return super().materialise()

    class Shadowing(Scaled):
        picture: jax.Array = 1.0

    class Module(jaxrewrite.ArrayValue, equinox.Module):
        x: jax.Array

        def materialise(self):
            return self.x

    seen = []
    assert repr(deleted) == "Diagonal<f32[2,2], 8 B>(d=f32[2])"
    assert repr(Refusing(jnp.ones(2))) == "Refusing(x=f32[2])"
    assert repr(Talking(jnp.ones(2), 1.0)) == "Talking([1. 1.], dtype=float32)"
    assert all("Talking(x=f32[2], scale=" in text for text in seen)
    assert repr(Shadowing(jnp.ones(2), 1.0)) == "Shadowing([1. 1.], dtype=float32)"
    assert repr(Module(jnp.ones(2))) == "Module([1. 1.], dtype=float32)"
    for cls in (Scaled, Diagonal, Lora, Unitful, Masked, Quantised, values.Sparse):
        bare = object.__new__(cls)
        assert repr(bare).startswith(cls.__name__)
        assert str(bare) and f"{bare}" and bare._repr_html_()
    for leaf in (
        None,
        object(),
        jax.ShapeDtypeStruct((3,), "float32"),
        "d",
        jax.random.key(0),
    ):
        assert repr(jax.tree.map(lambda _: leaf, D)).startswith("Diagonal")  # noqa: B023
    assert repr(values.Threefry.seed(0)).startswith("Threefry<")


def test_arrays_on_several_devices():
    first, second, *_ = jax.devices()
    a, b = jax.device_put(jnp.ones((2, 1)), first), jax.device_put(jnp.ones((1, 2)), second)
    assert str(LowRank(a, b)) == "[[1. 1.]\n [1. 1.]]"
    for kind in jax.sharding.AxisType:
        mesh = jax.make_mesh((2,), ("i",), axis_types=(kind,))
        spec = jax.sharding.NamedSharding(mesh, jax.P("i"))
        if kind is not jax.sharding.AxisType.Manual:
            with jax.set_mesh(mesh):
                v = Diagonal(jax.device_put(jnp.ones(2), spec))
                assert str(v) == "[[1. ·]\n [· 1.]]".replace("·", " ·")


class Checker(html.parser.HTMLParser):
    """Collects the elements of a page, which must be closed as they were opened."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("size", [3, 1000])
def test_notebooks_draw_structure_and_what_is_stored(size):
    d = Diagonal(jnp.ones(size))
    page = Checker(d._repr_html_())
    entries = size if size == 3 else 0
    assert page.tags.count("svg") == 2  # The array, and its leaf.
    assert page.tags.count("rect") == 2 + entries
    assert repr(d) in page.text
    assert (
        "12 B stored, 36 B dense" if size == 3 else "4 kB stored, 4 MB dense"
    ) in page.text
    # Both are as wide as the box.
    assert d._repr_html_().count(' width="120"') == 2
    # Rows of numbers stay rows; a summary is one long line.
    assert ("pre-wrap" in d._repr_html_()) == (size > 3)


@pytest.mark.filterwarnings("ignore:The chararray class:DeprecationWarning")  # its own
def test_treescope_shows_fields_and_has_the_page():
    text = treescope.render_to_text({"length": Unitful(jnp.ones(3), "m")})
    assert "'length': Unitful(" in text and "units=Units('m')" in text
    assert "Rich HTML representation" in text


def test_pages_are_escaped():
    value = Named(jnp.arange(2.0), ["<script>alert(1)</script>"])
    assert "<script" not in value._repr_html_()
    assert "script" not in Checker(value._repr_html_()).tags
    assert (
        Checker(Masked(jnp.ones(2), jnp.array([True, False]))._repr_html_()).tags.count(
            "rect"
        )
        == 4
    )


def test_a_page_has_a_square_for_each_number_without_marks():
    pictured = Interval(jnp.zeros((2, 3)), jnp.ones((2, 3)))
    page = Checker(pictured._repr_html_())
    assert page.tags.count("rect") == 3 + 6 and page.tags.count("svg") == 3


def test_parts_of_a_text_keep_their_left_margin():
    """The column is that of the last line, which does not begin where the first does."""
    rows = jnp.arange(4.0).reshape(2, 2)
    first, *others = repr(Interval(rows, rows + 4)).split("\n")
    assert first == "Interval([[0. 1.]" and others[-1].endswith("dtype=float32)")
    (line,) = [line for line in others if " to [[" in line]
    column = line.index("[[", line.index(" to "))
    assert others[others.index(line) + 1].index("[") == column + 1
