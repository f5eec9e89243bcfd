"""`load_gguf` of files that the package ``gguf`` writes, and of files that are not whole."""

import struct

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import jaxrewrite
from jaxrewrite.checkpoints import load_gguf
from jaxrewrite.testing import assert_same
from jaxrewrite.values import GGUF


def written(path, quantised=(("blk.0.attn_q.weight", "Q8_0"), ("embed", "Q4_K"))):
    """A file with tensors of several types."""
    numbers = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(1e4)
    writer.add_token_list(["a", "é", "<s>"])
    writer.add_array("sizes", [1, 2, 3])
    writer.add_bool("is_good", True)
    for name, kind in quantised:
        layout = GGUF.formats[kind]
        data = numbers.integers(0, 60, (4, 512 // layout.entries * layout.bytes), np.uint8)
        writer.add_tensor(name, data, raw_dtype=Kind[kind])
    writer.add_tensor("norm", numbers.normal(size=6).astype("float32"))
    writer.add_tensor("half", numbers.normal(size=(2, 3)).astype("float16"))
    brain = np.asarray(jnp.ones((2, 3), "bfloat16")).view(np.uint8)
    writer.add_tensor("brain", brain, raw_dtype=Kind.BF16)
    writer.add_tensor("ints", np.arange(4, dtype="int32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_tensors_are_those_that_gguf_reads(tmp_path):
    path = written(tmp_path / "model.gguf", [(kind, kind) for kind in GGUF.formats])
    tensors = load_gguf(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert list(tensors) == list(theirs) and len(tensors) == len(theirs)
    for name, tensor in theirs.items():
        value, kind = tensors[name], tensor.tensor_type
        shape = tuple(tensor.shape.tolist()[::-1])
        assert value.shape == shape
        if kind.name in GGUF.formats:
            assert isinstance(value, GGUF) and value.codes.format == kind.name
            np.testing.assert_array_equal(
                value.codes.bytes.reshape(tensor.data.shape), tensor.data
            )
        want = tensor.data
        if tensor.data.dtype == np.uint8:
            want = gguf.quants.dequantize(tensor.data, kind)
        np.testing.assert_array_equal(np.asarray(value).astype("float32"), want)
    dtypes = {name: tensors[name].dtype.name for name in ("norm", "half", "brain", "ints")}
    assert list(dtypes.values()) == ["float32", "float16", "bfloat16", "int32"]
    assert f"{len(theirs)} tensors" in repr(tensors)


def test_integers_are_not_cut_to_32_bits(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("small", np.arange(4))
    writer.add_tensor("large", np.array([1, 2**40]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = load_gguf(tmp_path / "model.gguf")
    np.testing.assert_array_equal(tensors["small"], np.arange(4))
    # Only what is looked up is read.
    assert "large" in tensors and "other" not in tensors
    with pytest.raises(
        ValueError, match="'large' has numbers of int64 that do not fit int32"
    ):
        tensors["large"]
    with jax.enable_x64(True):
        np.testing.assert_array_equal(tensors["large"], [1, 2**40])


def test_metadata(tmp_path):
    about = load_gguf(written(tmp_path / "model.gguf")).metadata
    assert about["general.architecture"] == "llama" and about["llama.block_count"] == 2
    assert about["tokenizer.ggml.tokens"] == ["a", "é", "<s>"]
    assert about["llama.rope.freq_base"] == 1e4
    assert about["sizes"] == [1, 2, 3] and about["is_good"] is True


def test_a_file_may_end_with_its_metadata(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "empty.gguf", "llama")
    writer.add_string("last", "word")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model = load_gguf(tmp_path / "empty.gguf")
    assert not len(model) and model.metadata["last"] == "word"


def test_a_weight_is_multiplied_as_that_of_a_layer_of_pytorch(tmp_path):
    w = load_gguf(written(tmp_path / "model.gguf"), dtype="bfloat16")["embed"]
    assert w.dtype == "bfloat16" and w.shape == (4, 512)
    x = jnp.ones((2, 512), "bfloat16")
    layer = lambda w, x: x @ w.T
    got = jaxrewrite.transform(layer, materialise="forbid")(w, x)
    assert_same(got, layer(jaxrewrite.materialise(w), x), 1e-2)


def spoilt(path, change):
    data = bytearray(path.read_bytes())
    path.write_bytes(bytes(change(data)))
    return path


def with_number(at, number, code="<I"):
    """A file with another number at a place, or behind a name."""

    def change(data):
        start = at if isinstance(at, int) else data.index(at) + len(at)
        struct.pack_into(code, data, start, number)
        return data

    return change


# Behind the name of a tensor: the number of axes, two sizes, the type, and the place.
NAME = b"blk.0.attn_q.weight"
AXES, ROW, TYPE, PLACE = (NAME + bytes(0), 0), (NAME, 4), (NAME, 20), (NAME, 24)


def behind(place, number, code="<I"):
    name, offset = place

    def change(data):
        struct.pack_into(code, data, data.index(name) + len(name) + offset, number)
        return data

    return change


SPOILT = {
    "empty": (lambda data: b"", "is no GGUF file"),
    "another format": (lambda data: b"PK34" + data[4:], "is no GGUF file"),
    "version": (with_number(4, 1), "is of version 1. Versions 2 and 3 are read"),
    "byte order": (with_number(4, 3, ">I"), "big-endian"),
    "no counts": (lambda data: data[:20], "is not whole: it ends within its header"),
    "many keys": (with_number(16, 2**60, "<Q"), "its metadata"),
    "many tensors": (with_number(8, 2**60, "<Q"), "the entry of tensor"),
    "metadata": (lambda data: data[:60], "ends within its metadata 'general.architecture'"),
    "type of metadata": (with_number(b"general.architecture", 99), "of the type 99"),
    "type": (
        behind(TYPE, 16),
        f"a tensor {NAME.decode()} of the type 16, which is not known",
    ),
    "axes": (behind(AXES, 5), f"a tensor {NAME.decode()} of 5 axes"),
    "row": (behind(ROW, 33, "<Q"), r"of shape \(4, 33\), which Q8_0 cannot have"),
    "no entries": (behind(ROW, 0, "<Q"), r"of shape \(4, 0\), which Q8_0 cannot have"),
    "large": (behind(ROW, 2**50, "<Q"), f"not whole: the tensor {NAME.decode()} of"),
    "overlap": (behind(ROW, 544, "<Q"), f"tensor embed .* begins within {NAME.decode()}"),
    "not aligned": (behind(PLACE, 1, "<Q"), "is not aligned to 32"),
    "far away": (behind(PLACE, 2**40, "<Q"), f"not whole: the tensor {NAME.decode()} of"),
    "cut": (lambda data: data[:-32], r"is not whole: the tensor ints of shape \(4,\) ends"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_files_that_are_not_whole(name, tmp_path):
    change, message = SPOILT[name]
    path = spoilt(written(tmp_path / "model.gguf"), change)
    with pytest.raises(ValueError, match=message) as error:
        load_gguf(path)
    assert str(error.value).startswith(f"load_gguf: {path} ")


def test_a_file_cut_anywhere_is_one_clear_error(tmp_path):
    path = written(tmp_path / "model.gguf")
    whole = path.read_bytes()
    end = max(tensor.start + tensor.size for tensor in load_gguf(path)._table.values())
    for length in [*range(0, 900, 7), end - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=f"load_gguf: {path} is no"):
            load_gguf(path)


def test_other_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="load_gguf: there is no file"):
        load_gguf(tmp_path / "missing.gguf")
    path = written(tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="must be real floating; got int32"):
        load_gguf(path, dtype="int32")
    with pytest.raises(KeyError, match="other"):
        load_gguf(path)["other"]
    double = spoilt(path, lambda data: data.replace(b"half", b"norm"))
    with pytest.raises(ValueError, match="has two tensors norm"):
        load_gguf(double)
