"""A failing program made small."""

import ast
import dataclasses
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .names import NAMES
from .oracle import Verdict, dense, judge
from .programs import Program


def shrunk(program: Program, verdict: Verdict, seconds: float = 20.0) -> Program:
    """The smallest program found that fails in the same way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _shrunk(program, verdict, time.monotonic() + seconds)


def _shrunk(program: Program, verdict: Verdict, until: float) -> Program:
    best, tried = program, {program}
    progress = True
    while progress and time.monotonic() < until:
        progress = False
        for smaller in simpler(best):
            if time.monotonic() > until:
                break
            if smaller in tried:
                continue
            tried.add(smaller)
            try:
                is_alike = alike(judge(smaller), verdict)
            except Exception:  # noqa: BLE001 - no program at all, as of results that are functions
                continue
            if is_alike:
                best, progress = smaller, True
                break
    return best


def alike(one: Verdict, other: Verdict) -> bool:
    if one.kind != other.kind:
        return False
    said = lambda v: v.detail.split(":")[0] if v.kind in ("crash", "ambiguous") else ""
    return said(one) == said(other) and _last(one.where) == _last(other.where)


def _last(where: str) -> str:
    return where.rsplit(" ", 1)[-1]


def simpler(program: Program) -> Iterator[Program]:
    """Programs that are a step simpler, the boldest steps first."""
    replace = dataclasses.replace
    if program.mode not in ("eager", "masked", "hidden", "slope", "bounds"):
        yield replace(program, mode="eager")
    if program.policy != "allow":
        yield replace(program, policy="allow")
    if program.x64:
        yield replace(_renamed(program, "float64", "float32"), x64=False)
    for dtype in ("bfloat16", "float16"):
        yield _renamed(program, dtype, "float32")
    n = len(program.steps)
    if n and program.result != f"t{n - 1}":
        yield replace(program, result=f"t{n - 1}")
    for i in range(n - 2, -1, -1):
        yield replace(program, steps=program.steps[: i + 1], result=f"t{i}")
    yield from _unused(program)
    with jax.enable_x64(program.x64):
        yield from _steps_as_operands(program)
        yield from _operands(program)
    for old, new in ("62", "63", "64", "42", "43", "32"):
        yield _renumbered(program, old, new)
    yield from _inside(program)


def _unused(program: Program) -> Iterator[Program]:
    """Without the last operand, and without a step, if nothing needs them."""
    text = " ".join((*program.steps, program.result))
    for i in reversed(range(len(program.operands))):
        if not re.search(rf"\bv{i}\b", text):
            yield _without(program, "v", i)
    for i in reversed(range(len(program.steps))):
        others = " ".join((*program.steps[:i], *program.steps[i + 1 :], program.result))
        if not re.search(rf"\bt{i}\b", others):
            yield _without(program, "t", i)


def _without(program: Program, letter: str, i: int) -> Program:
    def renamed(text: str) -> str:
        down = lambda m: f"{letter}{int(m[1]) - (int(m[1]) > i)}"
        return re.sub(rf"\b{letter}(\d+)\b", down, text)

    operands, steps = list(program.operands), list(program.steps)
    del (operands if letter == "v" else steps)[i]
    steps = [renamed(step) for step in steps]
    return dataclasses.replace(
        program,
        operands=tuple(operands),
        steps=tuple(steps),
        result=renamed(program.result),
    )


def plain(array: Any, seed: int) -> str:
    sizes = "".join(f", {n}" for n in array.shape)
    dtype = str(array.dtype)
    kind = "" if dtype == "float32" else f", dtype={dtype!r}"
    return f"u({seed}{sizes}{kind})"


def _steps_as_operands(program: Program) -> Iterator[Program]:
    """A step's result is an argument, a dense one, or its place is taken by an operand."""
    env = {f"v{i}": dense(eval(x, NAMES)) for i, x in enumerate(program.operands)}
    for i, step in enumerate(program.steps[:-1]):
        try:
            result = env[f"t{i}"] = eval(step, {**NAMES, **env})
        except Exception:  # noqa: BLE001 - not a program that runs step by step
            return
        for name in list(env):
            if name.startswith("v") and _like(env[name], result):
                steps = [re.sub(rf"\bt{i}\b", name, x) for x in program.steps]
                steps[i] = "None"
                changed = dataclasses.replace(program, steps=tuple(steps))
                yield _without(changed, "t", i)
        if hasattr(result, "shape"):
            new = f"v{len(program.operands)}"
            steps = [re.sub(rf"\bt{i}\b", new, x) for x in program.steps]
            operands = (*program.operands, plain(result, 100 + len(program.operands)))
            changed = dataclasses.replace(program, operands=operands, steps=tuple(steps))
            yield _without(changed, "t", i)


def _like(x: Any, y: Any) -> bool:
    return hasattr(y, "shape") and (x.shape, x.dtype) == (y.shape, y.dtype)


def _operands(program: Program) -> Iterator[Program]:
    """Each operand, or a part of one, is a plain array, or a part of itself."""
    for i, text in enumerate(program.operands):
        for smaller in _parts(text):
            operands = (*program.operands[:i], smaller, *program.operands[i + 1 :])
            yield dataclasses.replace(program, operands=operands)


def _evaluated(text: str) -> Any:
    try:
        return eval(text, NAMES)
    except Exception:  # noqa: BLE001 - not an expression of a value
        return None


def _parts(text: str) -> Iterator[str]:
    whole = _evaluated(text)
    tree = ast.parse(text, mode="eval")
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in nodes:
        part = ast.unparse(node)
        own = _evaluated(part)
        if not hasattr(own, "shape") or not hasattr(own, "dtype"):
            continue
        if jax.dtypes.issubdtype(own.dtype, jax.dtypes.extended):
            continue
        if node is not tree.body and _like(whole, own):
            yield part
        simple = plain(own, 100 + 7 * node.col_offset % 61)
        is_plain = re.fullmatch(r"u\((\d+(, )?)*(dtype='\w+')?\)", part)
        if not is_plain and jnp.issubdtype(own.dtype, jnp.inexact):
            yield text.replace(part, simple)


def _renamed(program: Program, old: str, new: str) -> Program:
    change = lambda text: text.replace(f"'{old}'", f"'{new}'")
    return dataclasses.replace(
        program,
        operands=tuple(map(change, program.operands)),
        steps=tuple(map(change, program.steps)),
    )


def _renumbered(program: Program, old: str, new: str) -> Program:
    change = lambda text: re.sub(rf"(?<![\w.]){old}(?![\w.])", new, text)
    return dataclasses.replace(
        program,
        operands=tuple(map(change, program.operands)),
        steps=tuple(map(change, program.steps)),
    )


def _inside(program: Program) -> Iterator[Program]:
    """An expression in the place of one that it is a part of."""
    for i, step in enumerate(program.steps):
        try:
            tree = ast.parse(step, mode="eval")
        except SyntaxError:
            continue
        for node in ast.iter_child_nodes(tree.body):
            if isinstance(
                node, (ast.Call, ast.BinOp, ast.Name, ast.UnaryOp, ast.Subscript)
            ):
                steps = (*program.steps[:i], ast.unparse(node), *program.steps[i + 1 :])
                yield dataclasses.replace(program, steps=steps)
