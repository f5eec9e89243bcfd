"""Random programs over the ready types: none is wrong. A few of those of ``python -m sweep``."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite.values import Diagonal
from sweep import oracle
from sweep.oracle import Verdict, judge, same
from sweep.programs import Program, program
from sweep.run import sweep
from sweep.shrink import shrunk


def told(found):
    """What a failing test says: programs to paste."""
    return "\n\n".join(f"# {x.group}\n{x.verdict.detail}\n{x.text}" for x in found.failures)


def test_some_programs(bulk):
    found = sweep([*range(5), 41, 85, 129], shown=1)
    assert not found.failures, told(found)
    assert found.counts["ok"] > 3, found.counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_many_programs(first, bulk):
    """More of them take hours: ``python -m sweep``."""
    found = sweep(range(first, first + 100))
    assert not found.failures, told(found)


def test_a_seed_is_a_program(bulk):
    one, again = program(14), program(14)
    assert one[0] == again[0]


@pytest.fixture
def wrong_sine():
    """A rule that is wrong on the diagonal, for as long as a test runs."""
    rules = jaxrewrite.Rules()

    @rules.register("sin")
    def _(v: Diagonal, **params):
        return Diagonal(jax.numpy.cos(v.d))

    return rules


def test_a_wrong_rule_is_found_and_the_program_shrunk(wrong_sine, monkeypatch, bulk):
    transform = jaxrewrite.transform
    monkeypatch.setattr(
        jaxrewrite, "transform", lambda f, rules, **kw: transform(f, rules=wrong_sine, **kw)
    )
    operands = ("Tagged(Diagonal(u(101, 4)), 'a')", "u(102, 4, 4)")
    steps = ("v0 @ v1", "jnp.sin(v0)", "t1 + t0")
    failing = Program(operands, steps, "(t2, t0)", mode="jit", policy="warn")
    verdict = judge(failing)
    assert verdict.kind == "wrong", verdict
    small = shrunk(failing, verdict, 60)
    assert small.steps == ("jnp.sin(v0)",)
    assert small.operands == ("Diagonal(u(101, 2))",)
    assert (small.mode, small.policy) == ("eager", "allow")
    compile(small.source(), "small", "exec")


def test_rounding_is_no_failure(bulk):
    """What is one number or another by rounding is not compared."""
    ties = Program(("Circulant(u(101, 4))",), ("v0.sum(0)", "jnp.argmax(t0)"), "t1")
    assert judge(ties).kind in ("ok", "doubtful")


def test_the_type_says_which_factors_of_a_product_meet_an_infinity_first(bulk):
    """Beside it is a structural zero, which a dense diagonal would multiply by it."""
    product = "Product((spoilt(u(101, 2, 2), -jnp.inf), Diagonal(u(102, 2))))"
    for operand in (product, f"Interval({product}, {product})"):
        assert judge(Program((operand,), ("abs(v0)",), "t0", mode="bounds")).kind == "ok"


def test_what_a_result_does_not_need_keeps_no_wider_program_from_explaining_it(bulk):
    """Of two dtypes there is no triangular solve; the cosine of a small angle is rounded."""
    steps = (
        "lax.linalg.triangular_solve(jnp.eye(2, dtype='float32'), v0)",
        "1 - jnp.cos(v0 * 1e-2)",
    )
    program = Program(("u(0, 2, 2)",), steps, "t1", table="stable")
    assert program.needed().steps == ("None", steps[1])
    assert judge(program).kind == "ok"
    both = dataclasses.replace(program, result="(t0, t1)")
    assert both.wider().steps[0] == steps[0].replace("32", "64")
    assert judge(both).kind == "ok"
    assert Program((), ("u(1, 2) * u(2, dtype='int32')",), "t0").wider().steps == (
        "u(1, 2, dtype='float64') * u(2, dtype='int32')",
    )
    assert Program(("u(0, 2)",), ("-v0", "t0 * 2"), "(t1, v0)").needed().steps == (
        "-v0",
        "t0 * 2",
    )


def test_eigenvectors_of_one_eigenvalue_have_no_derivative(bulk, monkeypatch):
    """The eigenvalues of a symmetric circulant matrix come in pairs."""
    of_vectors = "(lambda w, q: (q * w[..., None, :]) @ q.mT)(*jnp.linalg.eigh(t0))"
    steps = ("v0 @ v0.mT + jnp.eye(4)", of_vectors)
    pairs = Program(("Circulant(u(101, 2, 4))",), steps, "(t0, t1)", mode="jvp")
    apart = dataclasses.replace(pairs, operands=("Diagonal(u(101, 2, 4))",))
    made, nan = oracle.run_values, np.float32("nan")

    def without(i):
        def run(*args):
            leaves, treedef = jax.tree.flatten(made(*args))
            return treedef.unflatten(
                [x * nan if j == i else x for j, x in enumerate(leaves)]
            )

        return run

    # The results are a matrix and vectors, and then the tangents of both.
    for one, i, kind in ((pairs, 3, "skipped"), (pairs, 0, "wrong"), (apart, 3, "wrong")):
        monkeypatch.setattr(oracle, "run_values", without(i))
        assert judge(one).kind == kind


def test_comparison_is_of_all_entries():
    x = np.arange(4.0, dtype="float32")
    assert same(x, x + 1e-6)
    assert not same(x, x + [0, 0, 0, 1e-3])
    assert not same(x, np.where(x == 3, np.nan, x))
    assert same(np.where(x == 3, np.nan, x), np.where(x == 3, np.nan, x))
    assert not same(x > 1, x > 2)
    assert not Verdict("refused").failed
