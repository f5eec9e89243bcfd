"""The text of rewritten programs, before and after a change that is to change none.

``python -m rewritten_text --seeds 0:5000 --out before.json``, in this folder with the library
importable, stores a digest of the jaxpr of each program of the sweep, and of the models of the
benchmark. After the change, ``--against before.json`` lists the programs that differ, and
``--show NAME`` prints one. A name is a seed or that of a case.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any


os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+|\bid=\d+")
_PLACE = re.compile(r"[\w./-]*jaxrewrite/[\w./]+\.py(:\d+)?")


def text_of(fn: Any, operands: Any, policy: str) -> str:
    """The text of a rewritten program, or of the error that there is instead.

    Addresses of objects, and places in the library's own files, are left out.
    """
    import jaxrewrite

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            text = str(jaxrewrite.make_jaxpr(fn, materialise=policy)(*operands))
        except Exception as error:  # noqa: BLE001 - which error it is, is compared
            text = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return _PLACE.sub("FILE", _ADDRESS.sub("", text))


def random_programs(seeds: range) -> Iterator[tuple[str, str]]:
    import jax
    from sweep.oracle import function_of, operands_of
    from sweep.programs import program

    for seed in seeds:
        made = program(seed)
        if made is None:
            continue
        one, _ = made
        with jax.enable_x64(one.x64):
            yield str(seed), text_of(function_of(one), operands_of(one), one.policy)


def models() -> Iterator[tuple[str, str]]:
    """The models of the benchmark."""
    import jax

    from bench import gpt2, model

    config = gpt2.TINY
    params = gpt2.init(config, jax.random.key(0))
    ids = jax.random.randint(jax.random.key(1), (1, 8), 0, config.vocabulary)
    adapted = model.adapt(params, 2, jax.random.key(2))
    cases = {
        "lora": adapted,
        "int8": model.map_layers(params, kernel=model.int8),
        "zeros": model.drop_biases(params),
        "lora and zeros": model.drop_biases(adapted),
    }
    for name, values in cases.items():
        yield name, text_of(lambda p: gpt2.apply(p, ids, config.heads), (values,), "allow")


def digests(named: Iterator[tuple[str, str]]) -> dict[str, str]:
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in named}


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The names whose texts differ, or that only one of the two has."""
    names = {**before, **after}
    return [name for name in names if before.get(name) != after.get(name)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="rewritten_text", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:last")
    parser.add_argument("--out", type=Path, help="a file for the digests")
    parser.add_argument("--against", type=Path, help="the digests to compare with")
    parser.add_argument("--show", help="print the text of one program")
    options = parser.parse_args()
    seeds = range(*map(int, options.seeds.split(":")))
    if options.show:
        is_seed = options.show.isdigit()
        of = random_programs(range(int(options.show), int(options.show) + 1))
        print(
            next(
                text for name, text in (of if is_seed else models()) if name == options.show
            )
        )
        return 0
    found = digests(models()) | digests(random_programs(seeds))
    if options.out:
        options.out.write_text(json.dumps(found, indent=0))
    if not options.against:
        return 0
    changed = differing(json.loads(options.against.read_text()), found)
    print(f"{len(found)} programs, {len(changed)} differ:", *changed, file=sys.stdout)
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
