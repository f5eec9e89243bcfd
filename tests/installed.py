"""Whether the installed package is whole: ``python tests/installed.py``, outside of a checkout.

Every module is imported, the version is that of the metadata, and a program runs. It needs
nothing but the package and what the package requires.
"""

import importlib
import importlib.metadata
import importlib.util
import pathlib
import pkgutil
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite import values


# What a module needs that the package does not require.
OPTIONAL = {
    "jaxrewrite._interop.lineax": "lineax",
    "jaxrewrite.testing.fixtures": "pytest",
    "jaxrewrite.testing.strategies": "hypothesis",
}


def check_place():
    # The environment itself may lie in the checkout, where tox puts it.
    package = pathlib.Path(jaxrewrite.__file__).resolve().parent
    site = pathlib.Path(sysconfig.get_path("purelib")).resolve()
    assert package.parent == site, f"{package} is not the one installed in {site}"
    assert (package / "py.typed").exists()


def check_metadata():
    metadata = importlib.metadata.metadata("jaxrewrite")
    assert metadata["Version"] == jaxrewrite.__version__
    for field in ("Summary", "Author", "License", "Keywords", "Requires-Python"):
        assert metadata[field], field
    assert metadata.get_payload() or metadata["Description"]


def check_modules():
    count = 0
    for module in pkgutil.walk_packages(jaxrewrite.__path__, "jaxrewrite."):
        if module.name.endswith("__main__"):
            continue
        needed = OPTIONAL.get(module.name)
        if needed is None or importlib.util.find_spec(needed):
            importlib.import_module(module.name)
            count += 1
    return count


def check_program():
    rng = np.random.default_rng(0)
    w, a, b, x = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((6, 4), (6, 2), (2, 4), (3, 6))
    )
    value = values.Lora(w, a, b)
    model = lambda w, x: jnp.tanh(x @ w).sum()
    loss = jaxrewrite.transform(model, materialise="forbid")
    got, gradient = jax.jit(jax.value_and_grad(loss))(value, x)
    want, dense = jax.value_and_grad(model)(w + a @ b, x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(gradient.a, dense @ b.T, rtol=1e-4, atol=1e-5)
    assert "Lora" in str(jaxrewrite.explain(model)(value, x))


if __name__ == "__main__":
    check_place()
    check_metadata()
    modules = check_modules()
    check_program()
    print(
        f"jaxrewrite {jaxrewrite.__version__} on jax {jax.__version__}: {modules} modules"
    )
