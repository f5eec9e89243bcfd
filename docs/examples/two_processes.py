"""QLoRA-like training over two processes of four devices each, one of which is killed.

Adapters on 8-bit weights are trained under `jax.distributed`. The mesh of eight devices splits
the batch in four and the weights in two. After every second step a checkpoint is written. A
first run goes through. In a second one a process is killed after three steps; both are started
again, continue from the last checkpoint, and give the losses of the first run.

Run it with ``python docs/examples/two_processes.py``. It needs optax and orbax-checkpoint.
"""

import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TypedDict


STEPS, KILLED_AFTER, SAVE_EVERY = 6, 3, 2


# --- a worker: one of the processes --------------------------------------------------------


def work(port: int, process: int, folder: pathlib.Path) -> None:
    """Train from the last checkpoint in the folder, or from the beginning."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_num_cpu_devices", 4)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)
    import numpy as np
    import optax
    import orbax.checkpoint as ocp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    import jaxrewrite
    from jaxrewrite.values import Lora, adapt, combine, freeze, partition, quantise

    class Params(TypedDict):
        tokens: jax.Array
        blocks: list[dict[str, jax.Array]]

    class State(TypedDict):
        trained: optax.Params
        moments: optax.OptState

    # An ordinary model, which knows nothing of all this.
    def model(params: Params, tokens: jax.Array) -> jax.Array:
        x = params["tokens"][tokens]
        for block in params["blocks"]:
            x = x + jax.nn.gelu(x @ block["up"]) @ block["down"]
        return x @ params["tokens"].T

    def initial() -> Params:
        keys = iter(jax.random.split(jax.random.key(0), 6))

        def normal(*shape: int) -> jax.Array:
            return jax.random.normal(next(keys), shape) / math.sqrt(shape[0])

        blocks = [{"up": normal(32, 64), "down": normal(64, 32)} for _ in range(2)]
        params: Params = {"tokens": normal(64, 32), "blocks": blocks}
        is_kernel = lambda path, leaf: path.endswith(("up", "down"))
        params = quantise(params, is_kernel, 8, axis=-1)
        adapted: Params = adapt(params, is_kernel, rank=4, key=next(keys))
        return adapted

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rules = [("up", P(None, "model")), ("down", P("model")), ("", P())]
    params = jaxrewrite.place(initial(), mesh, rules)
    trained, rest = partition(params, freeze(params, {Lora: ["w"]}, rest="freeze"))
    optimiser = optax.adam(1e-2)
    # Moments are made where the arrays are; the count of steps is put on all devices.
    state: State = {"trained": trained, "moments": optimiser.init(trained)}
    everywhere = NamedSharding(mesh, P())
    state = jax.tree.map(lambda x: x if x.ndim else jax.device_put(x, everywhere), state)
    implicit = jaxrewrite.transform(model, materialise="forbid")

    def loss(trained: optax.Params, rest: optax.Params, tokens: jax.Array) -> jax.Array:
        logits = implicit(combine(trained, rest), tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return jnp.mean(losses)

    @jax.jit
    def update(
        state: State, rest: optax.Params, tokens: jax.Array
    ) -> tuple[State, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(state["trained"], rest, tokens)
        change, moments = optimiser.update(gradient, state["moments"], state["trained"])
        trained = optax.apply_updates(state["trained"], change)
        return {"trained": trained, "moments": moments}, value

    def batch(step: int) -> jax.Array:
        first = np.random.default_rng(step).integers(0, 64, (8, 1), np.int32)
        tokens = (first + 5 * np.arange(16, dtype=np.int32)) % 64
        place = NamedSharding(mesh, P("data"))
        return jax.make_array_from_callback(tokens.shape, place, lambda i: tokens[i])

    with ocp.CheckpointManager(folder / "checkpoints") as checkpoints:
        last = checkpoints.latest_step()
        if last is not None:
            state = checkpoints.restore(last, args=ocp.args.StandardRestore(state))
        for step in range(last or 0, STEPS):
            state, value = update(state, rest, batch(step))
            with open(folder / f"losses-{process}", "a") as file:
                file.write(f"{step} {float(value):.6f}\n")
            if (step + 1) % SAVE_EVERY == 0:
                checkpoints.save(step + 1, args=ocp.args.StandardSave(state))
                checkpoints.wait_until_finished()
            if step + 1 == KILLED_AFTER and os.environ.get("KILL") == str(process):
                os.kill(os.getpid(), signal.SIGKILL)  # as a machine that goes down


# --- the launcher ---------------------------------------------------------------------------


def launch(folder: pathlib.Path, **environment: str) -> list[int]:
    """Run both processes to their end; if one fails the other one is stopped."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = []
    for i in range(2):
        with open(folder / f"log-{i}", "a") as log:
            command = [sys.executable, __file__, str(port), str(i), str(folder)]
            given = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
            workers.append(subprocess.Popen(command, env=given, stdout=log, stderr=log))
    while None in (codes := [worker.poll() for worker in workers]):
        if any(codes):
            for worker in workers:
                worker.kill()
        time.sleep(0.1)
    return [worker.wait() for worker in workers]


def losses(folder: pathlib.Path, process: int) -> dict[int, str]:
    """The last loss that a process wrote for each step."""
    lines = (folder / f"losses-{process}").read_text().splitlines()
    return {int(line.split()[0]): line.split()[1] for line in lines}


def main() -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        through, killed = pathlib.Path(first), pathlib.Path(second)
        if any(launch(through)):
            sys.exit((through / "log-0").read_text())
        print("without a break: ", *losses(through, 0).values())
        assert any(launch(killed, KILL="1")), "a process was to be killed"
        print(f"one killed after {KILLED_AFTER}:", *losses(killed, 0).values())
        if any(launch(killed)):
            sys.exit((killed / "log-0").read_text())
        print("and started again:", *losses(killed, 0).values())
        every = [losses(f, i) for f in (through, killed) for i in range(2)]
        assert all(one == every[0] and len(one) == STEPS for one in every), every
        print("The losses are the same, in both processes.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))
    else:
        main()
