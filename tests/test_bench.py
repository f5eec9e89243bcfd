"""The benchmarks run, at a small size, and say what is true of it; nothing is timed."""

import json

import pytest

from bench.__main__ import main


SMALL = "--layers 2 --width 64 --heads 2 --vocabulary 50 --length 8 --batch 1 --repeats 2"


def test_main_job(tmp_path, capsys, no_leak_checks):
    file = tmp_path / "results.json"
    assert main([*SMALL.split(), "--rank", "2", "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    assert written["options"]["layers"] == 2
    for name, case in written["results"].items():
        assert case["largest_difference"] < 1e-4, name
        for variant in ("dense", "implicit"):
            assert len(case[variant]["samples"]) == 2
            assert case[variant]["flops"] > 0
            assert case[variant]["memory"] > 0
    lora, zero = written["results"]["LoRA weights"], written["results"]["zero biases"]
    assert lora["implicit"]["temporaries"] < lora["dense"]["temporaries"]
    assert zero["implicit"]["flops"] < zero["dense"]["flops"]
    output = capsys.readouterr()
    assert "implicit / dense" in output.out
    assert "Where implicit execution loses" in output.out
    assert "tracing and compiling" in output.err


def test_results_that_disagree_fail(monkeypatch, capsys, no_leak_checks):
    from bench import model

    monkeypatch.setattr(
        model.jaxrewrite, "transform", lambda f, **k: lambda v, i: 2 * f(v, i)
    )
    assert main(SMALL.split()) == 1
    assert (
        "FAILED: LoRA weights: dense and implicit outputs differ" in capsys.readouterr().err
    )


def test_overhead(tmp_path, capsys, no_leak_checks):
    file = tmp_path / "results.json"
    assert main(["overhead", "--depths", "4", "--repeats", "2", "--json", str(file)]) == 0
    result = json.loads(file.read_text())["results"]["4"]
    assert result["hlo_instructions"]["implicit"] == result["hlo_instructions"]["hand"]
    assert set(result["samples"]) == {"trace", "eager call", "jitted call"}
    assert "by hand" in capsys.readouterr().out


def test_unknown_suites_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "invalid choice" in capsys.readouterr().err
