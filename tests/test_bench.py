"""The benchmarks run at a small size, and their exact figures are right; no times are tested."""

import collections
import functools
import gc
import itertools
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import jaxrewrite
from bench import (
    cheapest,
    llama,
    machine,
    measure as measuring,
    model,
    page,
    peers,
    plots,
    report,
    scale,
    suite,
    types,
)
from bench.__main__ import PARTS, main
from bench.collectives import collectives
from jaxrewrite.testing import assert_same


pytestmark = pytest.mark.usefixtures("no_leak_checks")


def measure(name, *arguments, file):
    assert main([name, "--quick", "--json", str(file), *arguments]) == 0
    _, results = suite.load(file)
    assert results
    assert all(result.part == name for result in results)
    return suite.rows_of(results)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "results.json"


@pytest.mark.slow
def test_main_job(file, capsys, optimised):
    rows = measure("model", "--layers", "1", file=file)
    for row in rows.values():
        assert set(row) - {"Quax"} == {"dense", "implicit"}
        assert all(result.value > 0 for result in row.values())
    time = rows["LoRA weights", None, "wall time"]["implicit"]
    assert len(time.samples) == 2
    temporaries = rows["LoRA weights", None, "temporaries"]
    assert temporaries["implicit"].value < temporaries["dense"].value
    flops = rows["zero biases", None, "FLOPs"]
    assert flops["implicit"].value < flops["dense"].value
    output = capsys.readouterr()
    lines = output.out.splitlines()
    first = lines[lines[0].startswith("WARNING") :][:5]
    assert first[1].startswith("LoRA weights: won ") and "temporaries" in first[1]
    assert "implicit / dense" in output.out
    assert "tracing and compiling" in output.err


@pytest.mark.slow
def test_overhead(file, optimised):
    rows = measure("overhead", "--depths", "2", file=file)
    whats = {quantity for _, _, quantity in rows}
    assert whats == {
        "trace",
        "trace of the gradient",
        "eager call",
        "eager gradient",
        "jitted call",
        "each value of a call",
        "HLO instructions",
        "memory",
    }
    assert len({case for case, _, _ in rows}) == 2
    for (case, _, quantity), row in rows.items():
        if quantity in ("HLO instructions", "memory"):
            assert row["implicit"].value == row["by hand"].value, case


@pytest.mark.slow
def test_cheapest(file, capsys, optimised):
    rows = measure("cheapest", file=file)
    for (_, _, quantity), row in rows.items():
        assert set(row) == {
            "cheapest",
            *(("dense", "implicit") if quantity == "wall time" else ()),
        }
    assert "of the faster of implicit and dense" in capsys.readouterr().out


def test_programs_are_the_same_but_for_names_and_lines():
    def compiled(fn):
        return jax.jit(fn).lower(1.0).compile()

    def mine(number):
        return jnp.sin(number) + 1

    first, again = compiled(mine), compiled(lambda x: jnp.sin(x) + 1)
    assert first.as_text() != again.as_text()
    assert cheapest.instructions(first) == cheapest.instructions(again)
    assert cheapest.instructions(first) != cheapest.instructions(compiled(jnp.sin))


def test_the_choice_by_cost_is_summed_up():
    made = lambda size, value: suite.Measurement(
        "cheapest", "a", size, cheapest.OVER, "cheapest", "x", value
    )
    (line,) = cheapest.headline([made(i, 1.0 if i else 1.6) for i in range(10)])
    assert "in 90.0%" in line and line.endswith("largest 1.60; over 1.5: a, width 0.")
    assert cheapest.headline([made(0, 1.0)]) == []


@pytest.mark.slow
def test_growth(file):
    rows = measure("growth", file=file)
    assert len({case for case, _, _ in rows if case.startswith("chain")}) == 3
    # What is allocated for an equation doesn't grow with their number.
    few, many = (
        rows["chain, values", size, "memory of an equation"]["implicit"].value
        for size in (50, 100)
    )
    assert many < 1.1 * few


@pytest.mark.slow
def test_quantised_products(file, optimised):
    rows = measure("quantised", file=file)
    for name, bytes_of_dense in (("int8", 3.9), ("int4", 7), ("NF4", 7.5)):
        (row,) = (row for key, row in rows.items() if key[2] == f"{name}, 1 row: bytes")
        assert row["dense"].value > bytes_of_dense * row["implicit"].value


@pytest.mark.slow
def test_conversions(file, optimised):
    rows = measure("conversions", file=file)
    assert {what for _, _, what in rows} == {"to compress", "to make dense"}
    assert all({*row} == {"in steps", "implicit", "a pass"} for row in rows.values())


@pytest.mark.slow
def test_quantised_products_on_a_gpu(file, optimised, monkeypatch):
    """What is measured there runs anywhere, without the kernels."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rows = measure("quantised", file=file)
    found = {case for case, _, _ in rows}, {what for _, _, what in rows}
    assert found[0] == {"256 x 256, bfloat16"} and "NF4, 1 row, on a GPU: bytes" in found[1]


@pytest.mark.slow
def test_steady_state(file):
    rows = measure("steady", file=file)
    for case in ("eager calls", "jitted calls"):
        assert rows[case, 20, "times staged"]["implicit"].value == 1
        assert rows[case, 20, "kept a call"]["implicit"].value < 1000
    kept = rows["structures", 5, "kept a structure"]["implicit"].value
    gone = rows["structures", 5, "kept a structure, the function gone"]["implicit"].value
    assert gone < kept


@pytest.mark.slow
@pytest.mark.parametrize("name", types.TYPES)
def test_each_ready_type_is_measured(name, monkeypatch, file):
    """The benchmark itself compares each result with that of the dense array."""
    monkeypatch.setattr(types, "MAIN", (name,))
    assert {row for row, *_ in measure("types", file=file)} == {name}


@pytest.mark.slow
def test_peers(file):
    rows = measure("peers", file=file)
    # docs/sharp_bits.rst says how many there are, and which two of them are dense.
    outcomes = {name: rows["runs", None, name]["implicit"].note for name in peers.PROGRAMS}
    dense = {"custom_jvp on the weight", "custom_vjp on the weight"}
    assert len(outcomes) == 17
    assert {name: note == "dense" for name, note in outcomes.items()} == {
        name: name in dense for name in outcomes
    }
    assert {*outcomes.values()} == {"dense", "implicit"}
    assert {"by hand", "implicit", "sparsify"} == set(rows["sparse iteration", 16, "trace"])


@pytest.mark.slow
def test_a_missing_peer_is_said(monkeypatch, file, capsys):
    monkeypatch.setattr(peers, "quax_values", lambda: None)
    monkeypatch.setattr(peers, "_transformer", lambda *_: ())  # which takes its time
    rows = measure("peers", file=file)
    assert "pip install" in rows["all cases", None, "any"]["Quax"].note
    assert "Quax is not installed" in capsys.readouterr().err


@pytest.mark.slow
def test_results_that_disagree_fail(monkeypatch, capsys):
    monkeypatch.setattr(
        model.jaxrewrite, "transform", lambda f, **k: lambda v, i: 2 * f(v, i)
    )
    monkeypatch.setattr(model.jaxrewrite, "materialise", model.jaxrewrite.materialise)
    assert main(["model", "--quick", "--layers", "1"]) == 1
    assert (
        "FAILED: LoRA weights: dense and implicit outputs differ" in capsys.readouterr().err
    )


def made(value, variant="implicit", size=4, spread=0.0):
    return suite.Measurement(
        "overhead", "MLP with LoRA", size, "trace", variant, "s", value, spread
    )


def test_targets_that_are_missed_are_marked():
    part = PARTS["overhead"]
    good = report.text(part, [made(1.0, "by hand"), made(1.1)])
    bad = report.text(part, [made(1.0, "by hand"), made(1.2)])
    assert "1.15x" in good
    assert "missed" not in good
    assert "1.15x missed" in bad
    assert "MLP with LoRA, 4: trace is 1.20x of by hand" in bad


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_each_variant_has_each_place_and_each_other_before_it(count):
    names = "abcde"[:count]
    order = [*measuring.turns(names, 2 * count)]
    rounds = [order[i : i + count] for i in range(0, len(order), count)]
    for half in (rounds[:count], rounds[count:]):
        assert all(sorted(place) == [*names] for place in zip(*half, strict=True))
    followed = collections.Counter(p for x in rounds for p in itertools.pairwise(x))
    assert dict(followed) == dict.fromkeys(itertools.permutations(names, 2), 2)


def test_variants_are_measured_in_these_turns():
    gc.freeze()  # Garbage is collected before, and not among what other tests have made.
    called = []
    variants = {name: lambda name=name: called.append(name) for name in "abc"}
    samples = measuring.interleaved(variants, 5, warm_up=0)
    assert called == [*measuring.turns("abc", 5)]
    assert {name: len(times) for name, times in samples.items()} == dict.fromkeys("abc", 5)


IDLE = machine.Reading(load=0.1, total=100.0, busy=10.0, stolen=0.0, own=10.0)


@pytest.mark.parametrize(
    "load, after, said",
    [
        (0.1, (200, 60, 0, 59), ""),
        (3.25, (200, 60, 0, 59), "the load was 3.25 at the start"),
        (0.1, (200, 90, 0, 60), "other processes took 30% of the processor"),
        (0.1, (200, 60, 5, 60), "other machines took 5% of it"),
        (0.1, (100, 10, 0, 10), ""),
    ],
)
def test_a_busy_machine_is_told(load, after, said):
    start = IDLE._replace(load=load)
    line = machine.warning(start, IDLE, machine.Reading(9.0, *map(float, after)))
    assert bool(line) == bool(said) and said in line
    assert "\n" not in line


@pytest.mark.parametrize("load", [0.0, 7.5])
def test_the_warning_is_the_first_line(load, monkeypatch, capsys, file):
    monkeypatch.setattr(machine, "read", lambda: IDLE._replace(load=load))
    part = PARTS["imports"]._replace(run=lambda *_: iter([made(1.0)]))
    monkeypatch.setitem(PARTS, "imports", part)
    assert main(["imports", "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("WARNING: the machine was busy: the load was 7.50") == (
        load > 0
    )
    environment, _ = suite.load(file)
    assert environment.get("machine") == ("busy" if load else None)
    assert environment["processor"].endswith("cores")
    assert f"load {load:.2f} to " in lines[-1 if "load" in lines[-1] else -2]


def test_losses_are_beyond_the_spread():
    part = PARTS["overhead"]
    assert report.losses(part, [made(1.0, "by hand"), made(1.1, spread=0.2)]) == []
    assert len(report.losses(part, [made(1.0, "by hand"), made(1.1)])) == 1


def test_comparison_with_an_earlier_run():
    before = [made(1.0), made(1.0, size=24), made(1.0, size=96, spread=0.3)]
    after = [made(1.5), made(1.01, size=24), made(1.2, size=96), made(9.0, size=384)]
    text = report.against(before, after)
    assert "1.500" in text
    assert "2 other figures" in text
    assert "9.0" not in text
    assert "1 figures are as they were" in report.against([made(1.0)], [made(1.0)])


@pytest.mark.slow
def test_other_parts_against_others_with_figures_and_page(file, tmp_path, capsys):
    measure("imports", file=file)
    figures, written = tmp_path / "figures", tmp_path / "page.rst"
    found = tmp_path / "found.json"
    arguments = ["operations", "types", "imports", "--quick", "--against", str(file)]
    arguments += ["--plots", str(figures), "--page", str(written), "--json", str(found)]
    assert main(arguments) == 0
    _, results = suite.load(found)
    for row in suite.rows_of(results).values():
        assert row["implicit"].value > 0
    assert "Against python" in capsys.readouterr().out
    drawn = {path.name for path in figures.iterdir()}
    assert {"operations.png", "types.png"} <= drawn
    assert (figures / "types.png").read_bytes().startswith(b"\x89PNG")
    assert "image:: figures/overview.png" in written.read_text()
    text = (tmp_path / "measurements" / "operations.rst").read_text()
    assert "image:: ../figures/operations.png" in text and PARTS["operations"].title in text


def test_figures_of_the_same_measurements_are_left_as_they_are(tmp_path):
    results = [made(1.0, "by hand"), made(1.1)]
    (name,) = plots.save(PARTS["overhead"], results, str(tmp_path))
    drawn = (tmp_path / name).read_bytes()
    before = (tmp_path / name).stat().st_mtime_ns
    assert plots.save(PARTS["overhead"], results, str(tmp_path)) == [name]
    assert (tmp_path / name).stat().st_mtime_ns == before
    plots.save(PARTS["overhead"], [*results[:1], made(1.3)], str(tmp_path))
    assert (tmp_path / name).read_bytes() != drawn


DOCS = pathlib.Path(page.__file__).parent.parent / "docs"


def test_the_figures_in_the_documentation_are_those_that_it_shows():
    pages = [DOCS / "performance.rst", *(DOCS / "measurements").iterdir()]
    shown = [name for p in pages for name in re.findall(r"figures/(\S+)", p.read_text())]
    shown = {name for name in shown if name.endswith(".png")}
    assert shown == {path.name for path in (DOCS / "figures").iterdir()}


def test_the_pages_in_the_documentation_are_of_these_parts():
    findings = (DOCS / "performance.rst").read_text()
    for part in PARTS.values():
        text = (DOCS / "measurements" / f"{part.name}.rst").read_text()
        assert part.title in text and part.title in findings, part.name
        assert report.about(part) in text
    assert len(PARTS) == len(list((DOCS / "measurements").iterdir()))
    assert len(findings.splitlines()) <= 65


def test_the_main_question_is_answered_first():
    """At most 40 lines, of which the first five say what is won and lost."""
    part = PARTS["model"]
    results = [
        suite.Measurement("model", case, None, quantity, variant, unit, value)
        for case in ("LoRA weights", "int8 weights", "LoRA, zero biases")
        for quantity, unit in (("wall time", "s"), ("trace", "s"), ("memory", "B"))
        for variant, value in (
            ("dense", 1.0),
            ("implicit", {"wall time": 0.5, "trace": 1.2, "memory": 1.0}[quantity]),
            ("Quax", 2.4),
        )
    ]
    lines = report.text(part, results).splitlines()
    assert lines[1] == "LoRA weights: won wall time 0.50; lost trace 1.20"
    assert lines[4].startswith("Quax, as a share of implicit: wall time 4.80 to 4.80")
    assert len(lines) + 4 * len(part.headline(results)) < 40


def test_what_a_page_says_of_a_part():
    part = PARTS["overhead"]
    results = [
        made(1.0, "by hand"),
        made(0.5),
        made(1.0, "by hand", 24),
        made(1.5, size=24),
    ]
    assert report.finding(part, results) == [
        "Of 2 figures 1 are less than by hand, 0 equal within their spread, 1 more.",
        "Most: MLP with LoRA at 24, trace 1.50.",
    ]


def test_unknown_parts_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.slow
def test_under_pytest_benchmark():
    root = pathlib.Path(page.__file__).parent.parent
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "bench/test_operations.py",
            "--benchmark-disable",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "13 passed" in done.stdout


# --- programs for many devices --------------------------------------------------------------


HLO = """\
HloModule jit_step, num_partitions=8

%body (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %gathered = s8[16,8]{1,0} all-gather(s8[2,8]{1,0} %codes), dimensions={0}
  %sums = (f32[4,8]{1,0}, bf16[2]{0}) all-reduce(f32[4,8] %x, bf16[2] %y), to_apply=%add
}

%branch (x: f32[4]) -> f32[4] {
  ROOT %moved = f32[4]{0} collective-permute(f32[4]{0} %x)
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %start = (pred[2]{0}, pred[16]{0}) all-gather-start(pred[2]{0} %mask)
  %loop = (s32[], f32[4,8]) while(%state), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %chosen = f32[4]{0} conditional(%i, %x), branch_computations={%branch}
}
"""


def test_collectives_are_counted_with_the_turns_of_loops():
    found = {(c.name, c.dtype, c.shape): n for c, n in collectives(HLO).items()}
    assert found == {
        ("all-gather", "s8", (16, 8)): 3,
        ("all-reduce", "f32", (4, 8)): 3,
        ("all-reduce", "bf16", (2,)): 3,
        ("all-gather", "pred", (16,)): 1,
        ("collective-permute", "f32", (4,)): 1,
    }
    sizes = {(c.name, c.dtype): c.nbytes for c in collectives(HLO)}
    assert sizes["all-gather", "s8"] == 128 and sizes["all-reduce", "bf16"] == 4
    assert sizes["all-gather", "pred"] == 16


@pytest.mark.slow
def test_the_model_of_many_devices_is_that_of_its_dense_weights():
    config = llama.SIZES["tiny"]._replace(layers=1, length=4)
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    params = scale.quantised(config, jax.random.key(0))
    model = functools.partial(llama.apply, config, llama.Layout(mesh))
    tokens = jnp.arange(8).reshape(2, 4)
    got = jax.jit(jaxrewrite.transform(model, materialise="forbid"))(params, tokens)
    want = jax.jit(model)(jaxrewrite.materialise(params), tokens)
    assert_same(got, want, 0.1)
    step = functools.partial(llama.decode, config, llama.Layout(mesh))
    cache = llama.cache(config, 2)
    for i in range(4):
        logits, cache = jax.jit(jaxrewrite.transform(step, materialise="forbid"))(
            params, cache, tokens[:, i : i + 1], jnp.int32(i)
        )
        assert_same(logits[:, 0], got[:, i], 0.1)


@pytest.mark.slow
def test_no_dense_weight_is_sent(file):
    rows = measure("scale", file=file)
    for program in ("training", "decoding"):
        for mesh in ("FSDP", "tensor parallel"):
            case = f"tiny on 8 devices, {mesh}, {program}"
            assert rows[case, None, scale.SENT]["implicit"].value == 0
        gathered = rows[f"tiny on 8 devices, FSDP, {program}", None, scale.SENT]
        assert gathered["dense"].value > 0


def test_a_part_that_is_measured_anew_leaves_the_findings_of_others(tmp_path):
    file = str(tmp_path / "page.rst")
    parts = [PARTS["overhead"], PARTS["growth"]]
    by_hand, implicit = made(1.0, "by hand"), made(1.5)
    first = {part.name: {"jax": "1"} for part in parts}
    page.write(file, parts, [by_hand, implicit], first, {"": ["overview.png"]}, None)
    before = pathlib.Path(file).read_text()
    assert "trace 1.50" in before
    page.write(file, parts[:1], [by_hand, made(1.25)], {"overhead": {"jax": "2"}}, {}, None)
    assert pathlib.Path(file).read_text() == before.replace("trace 1.50", "trace 1.25")
    tables = tmp_path / "measurements"
    assert "Measured with jax 2." in (tables / "overhead.rst").read_text()
    assert "Measured with jax 1." in (tables / "growth.rst").read_text()
