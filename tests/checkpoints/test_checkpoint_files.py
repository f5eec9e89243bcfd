"""Files of `save`: whole or not at all, and read exactly or refused."""

import json
import os
import struct
import threading

import jax
import numpy as np
import peft_files
import pytest
from checkpoints_examples import abstract, few, int8, same, special


pytest.importorskip("safetensors", reason="save and load need the package safetensors")

from jaxrewrite.checkpoints import load, save  # noqa: E402


def test_a_file_gives_back_what_was_saved(tmp_path):
    tree = special()
    save(tmp_path / "it.safetensors", tree)
    same(load(tmp_path / "it.safetensors", tree), tree)
    same(load(str(tmp_path / "it.safetensors"), abstract(tree)), tree)
    assert [x.name for x in tmp_path.iterdir()] == ["it.safetensors"]


def test_other_programs_read_the_plain_arrays(tmp_path):
    tree = {"dense": int8(2, 3), "bias": np.arange(3, dtype=np.float32)}
    save(tmp_path / "it.safetensors", tree)
    tensors = peft_files.read_safetensors(tmp_path / "it.safetensors")
    np.testing.assert_array_equal(tensors["bias"], tree["bias"])
    np.testing.assert_array_equal(tensors["dense/q"], tree["dense"].q)


def test_files_that_are_cut_off_are_refused(tmp_path):
    path = tmp_path / "it.safetensors"
    save(path, few())
    whole = path.read_bytes()
    (header,) = struct.unpack("<Q", whole[:8])
    for length in (0, 3, 8, 9, header // 2, header + 8, header + 9, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="load: .*it.safetensors is not a whole file"):
            load(path, few())
    path.write_bytes(whole + b"more")
    with pytest.raises(ValueError, match="load: .*it.safetensors is not a whole file"):
        load(path, few())
    with pytest.raises(FileNotFoundError, match="save: there is no directory"):
        save(tmp_path / "new" / "it", few())
    with pytest.raises(FileNotFoundError, match="load: there is no file"):
        load(tmp_path / "other", few())


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "it.safetensors"
    path.write_bytes(peft_files.safetensors_bytes({"x": np.ones(3, np.float32)}))
    with pytest.raises(ValueError, match="was not written by jaxrewrite.checkpoints.save"):
        load(path, {"x": np.ones(3, np.float32)})
    path.write_bytes(json.dumps({"x": 1}).encode())
    with pytest.raises(ValueError, match="is not a whole file"):
        load(path, {"x": 1})
    save(path, {"x": int8(2, 2)})
    with pytest.raises(
        ValueError, match="load: what was stored differs from `like`: x is Q.*and f"
    ):
        load(path, {"x": np.ones((2, 2), np.float32)})


def test_what_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "it.safetensors"
    save(path, few())
    whole = path.read_bytes()

    import safetensors.numpy

    real = safetensors.numpy.save_file

    def fail(tensors, file, metadata):
        real(tensors, file, metadata=metadata)
        raise OSError("no space left")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        save(path, {"x": np.ones(3)})
    assert [x.name for x in tmp_path.iterdir()] == ["it.safetensors"]
    assert path.read_bytes() == whole


def test_a_directory_is_named_where_a_file_is_expected(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(IsADirectoryError, match="^save: .*/runs is a directory"):
        save(tmp_path / "runs", few())
    assert [x.name for x in tmp_path.iterdir()] == ["runs"]


def test_sharded_arrays_are_saved_whole_and_loaded_in_shards(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    tree = {"x": jax.device_put(np.arange(16.0, dtype=np.float32), split)}
    save(tmp_path / "it", tree)
    back = load(tmp_path / "it", tree)
    assert back["x"].sharding == split
    same(back, tree)


def test_files_of_a_folder_are_never_a_mixture_of_two(tmp_path, monkeypatch):
    """If the process ends while they are replaced, the last is missing; one file is there always."""
    from jaxrewrite.checkpoints._files import replacing

    there, replace = [], os.replace

    def watched(part, file):
        there.append(last.exists())
        replace(part, file)

    monkeypatch.setattr(os, "replace", watched)
    first, last = tmp_path / "first", tmp_path / "last"
    for path in (first, last):
        path.write_text("old")
    with replacing("save", first, last) as parts:
        for part in parts:
            part.write_text("new")
    assert there == [False, False]
    with replacing("save", last) as part:
        part.write_text("newest")
    assert there[2:] == [True]
    assert (first.read_text(), last.read_text()) == ("new", "newest")
    assert {*tmp_path.iterdir()} == {first, last}


def test_threads_may_save_to_one_file(tmp_path):
    path, errors = tmp_path / "it.safetensors", []
    like = {"x": np.zeros(200_000, np.float32)}

    def write(number):
        try:
            for _ in range(5):
                save(path, {"x": like["x"] + number})
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len({*np.asarray(load(path, like)["x"])}) == 1
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
