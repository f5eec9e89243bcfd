"""Diffrax on values: a tridiagonal matrix in the vector field, and units in the state.

The heat equation on a rod is u' = A u with a tridiagonal A. `diffeqsolve` takes A as ``args``,
with an explicit solver (Tsit5) and with an implicit one for stiff equations (Kvaerno5), and
never makes it dense. Nor do the gradients of both with respect to the three diagonals, that of
Kvaerno5 by `diffrax.DirectAdjoint`. The default adjoint keeps copies of the solver's state in
dense arrays, which it fills one by one. The state of Kvaerno5 has its Jacobian in it, which is
the matrix, and the factors of that. So this gradient needs ``materialise="allow"``; under
"forbid" it is a clear error. For its gradient Tsit5 takes constant steps: at the limit of its
stability, the derivative of adapted steps is noise, also in the dense program.

A pendulum has an angle, without units, and a velocity in 1/s. Diffrax knows nothing of units; it
fills its buffers with zeros and infinities, which are the same in all units, and its loops tell
which. At times that are given, it divides by a difference of times or by one, so that they are
numbers there, and the vector field is multiplied by the second. A vector field whose units don't
fit is a `UnitsError` before the first step. A stone falls in a time that has units; so have the
derivatives of its height.

Run it with ``python docs/examples/differential_equations.py [--plot FILE]``. It needs diffrax
and, for the figure, matplotlib.
"""

import argparse
from typing import TypeAlias

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite.values import Tridiagonal, Unitful, Units, UnitsError


jax.config.update("jax_enable_x64", True)
N, SOLVERS = 24, (diffrax.Tsit5(), diffrax.Kvaerno5())
CHECKPOINTS, DIRECT = diffrax.RecursiveCheckpointAdjoint(), diffrax.DirectAdjoint()

Solver: TypeAlias = diffrax.Tsit5 | diffrax.Kvaerno5
State: TypeAlias = tuple[jax.Array, jax.Array]  # angle and velocity


# An ordinary program.
def solve(
    matrix: jax.Array,
    start: jax.Array,
    solver: Solver,
    step: float | None = None,
    adjoint: diffrax.AbstractAdjoint = CHECKPOINTS,
) -> tuple[jax.Array, jax.Array]:
    """The state at the end, and the number of steps."""
    term = diffrax.ODETerm(lambda t, u, matrix: matrix @ u)
    adaptive = diffrax.PIDController(rtol=1e-6, atol=1e-8)
    control = adaptive if step is None else diffrax.ConstantStepSize()
    solution = diffrax.diffeqsolve(
        term,
        solver,
        0.0,
        0.05,
        step,
        start,
        args=matrix,
        stepsize_controller=control,
        max_steps=256,
        adjoint=adjoint,
    )
    assert solution.ys is not None
    return solution.ys[0], solution.stats["num_steps"]


def energy(
    matrix: jax.Array,
    start: jax.Array,
    solver: Solver,
    step: float | None,
    adjoint: diffrax.AbstractAdjoint,
) -> jax.Array:
    return jnp.sum(solve(matrix, start, solver, step, adjoint)[0] ** 2)


# Another one.
def pendulum(
    angle: jax.Array,
    velocity: jax.Array,
    length: jax.Array,
    gravity: jax.Array,
    second: jax.Array,
    times: jax.Array,
) -> State:
    def slope(state: State) -> State:
        angle, velocity = state
        return velocity * second, -gravity / length * jnp.sin(angle) * second

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, state, args: slope(state)),
        diffrax.Tsit5(),
        times[0],
        times[-1],
        None,
        (angle, velocity),
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=0.0),
    )
    assert solution.ys is not None
    states: State = solution.ys
    return states


# And one in which time has units.
def fall(time: jax.Array, velocity: jax.Array, gravity: jax.Array) -> jax.Array:
    """How far a stone comes up."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, state, args: (state[1], -gravity)),
        diffrax.Heun(),
        0.0 * time,
        time,
        time / 8,
        (0.0 * velocity * time, velocity),
    )
    assert solution.ys is not None
    heights: jax.Array = solution.ys[0]
    return heights[0]


def main(plot: str | None = None) -> None:
    ones = jnp.ones(N) * (N + 1) ** 2
    heat = Tridiagonal(ones[1:], -2 * ones, ones[1:])
    x = jnp.linspace(0, 1, N + 2)[1:-1]
    start = jnp.sin(jnp.pi * x) + jnp.sin(3 * jnp.pi * x)
    ends: dict[str, jax.Array] = {}

    def exact(matrix: Tridiagonal) -> jax.Array:
        flow: jax.Array = jax.scipy.linalg.expm(0.05 * jaxrewrite.materialise(matrix))
        return flow @ start

    for solver in SOLVERS:
        name = type(solver).__name__
        implicit = jaxrewrite.transform(solve, materialise="forbid")
        ends[name], steps = implicit(heat, start, solver)
        np.testing.assert_allclose(ends[name], exact(heat), atol=1e-5)
        print(f"{name}: {steps} steps, to the exact solution.")

    want = jax.grad(lambda matrix: jnp.sum(exact(matrix) ** 2))(heat)
    gradient = jax.grad(jaxrewrite.transform(energy, materialise="forbid"))
    close = 1e-3 * float(jnp.abs(want.main).max())
    compare = lambda g, w: np.testing.assert_allclose(g, w, atol=close)
    explicit, stiff = SOLVERS
    of_explicit = gradient(heat, start, explicit, 0.001, CHECKPOINTS)
    of_stiff = gradient(heat, start, stiff, None, DIRECT)
    jax.tree.map(compare, of_explicit, want)
    jax.tree.map(compare, of_stiff, want)
    print("The gradients with respect to the diagonals are those of the exact solution.")
    try:
        gradient(heat, start, stiff, None, CHECKPOINTS)
        raise AssertionError("Copies in dense arrays were to be refused.")
    except jaxrewrite.MaterialisationError as error:
        print("The default adjoint of Kvaerno5 is refused:", str(error).split(".")[0])

    times = jnp.linspace(0.0, 5.0, 101)
    quantities = Unitful(2.0, "m"), Unitful(9.81, "m/s^2"), Unitful(1.0, "s")
    still = Unitful(0.0, "1/s")
    swing = jaxrewrite.transform(pendulum, materialise="forbid")
    angles, velocities = swing(jnp.array(1.0), still, *quantities, times)
    assert isinstance(velocities, Unitful) and velocities.units == Units("1/s")
    one, zero = jnp.array(1.0), jnp.array(0.0)
    want = pendulum(one, zero, 2 * one, 9.81 * one, one, times)
    np.testing.assert_allclose(velocities.array, want[1], rtol=1e-12)
    print(f"The pendulum's velocity is in {velocities.units}.")
    try:
        swing(jnp.array(1.0), still, Unitful(2.0, "s"), *quantities[1:], times)
        raise AssertionError("A length in seconds was to be refused.")
    except UnitsError as error:
        print("A length in seconds is refused:", str(error).split("\n")[0])
    stone = Unitful(2.0, "s"), Unitful(15.0, "m/s"), Unitful(10.0, "m/s^2")
    height = jaxrewrite.transform(fall)(*stone)
    speed = jaxrewrite.transform(jax.grad(fall))(*stone)
    assert isinstance(height, Unitful) and isinstance(speed, Unitful)
    np.testing.assert_allclose((height.array, speed.array), (10.0, -5.0), rtol=1e-9)
    assert (height.units, speed.units) == (Units("m"), Units("m/s"))
    print(
        f"After 2 s a stone is {height.array:.0f} m up, at {speed.array:.0f} {speed.units}."
    )
    if plot:
        import matplotlib.pyplot as plt

        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
        left.plot(x, start, label="start")
        for (name, end), style in zip(ends.items(), ("o", "x"), strict=True):
            left.plot(x, end, style, label=name)
        left.set(xlabel="place", ylabel="temperature")
        left.legend()
        right.plot(times, angles)
        right.set(xlabel="time in s", ylabel="angle of the pendulum")
        figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)
