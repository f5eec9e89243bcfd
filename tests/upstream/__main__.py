"""``python -m upstream CHECKOUT [MODULE ...] [pytest's options]``: see the package."""

import os
import sys
from pathlib import Path

import pytest


MODULES = [
    "lax_test",
    "lax_numpy_test",
    "lax_numpy_operators_test",
    "lax_numpy_reducers_test",
    "lax_numpy_indexing_test",
    "lax_numpy_ufuncs_test",
    "lax_numpy_einsum_test",
    "lax_numpy_vectorize_test",
    "lax_numpy_setops_test",
    "lax_control_flow_test",
    "linalg_test",
    "nn_test",
    "fft_test",
    "image_test",
    "polynomial_test",
    "random_lax_test",
    "ode_test",
    "api_test",
    "lax_scipy_test",
    "lax_scipy_sparse_test",
    "lax_scipy_special_functions_test",
    "scipy_fft_test",
    "scipy_interpolate_test",
    "scipy_ndimage_test",
    "scipy_optimize_test",
    "scipy_signal_test",
    "scipy_spatial_test",
    "scipy_stats_test",
    "custom_api_test",
    "custom_linear_solve_test",
    "custom_root_test",
]


def main(args: list[str]) -> int:
    if not args or not (tests := Path(args[0]) / "tests").is_dir():
        print("usage: python -m upstream CHECKOUT [MODULE ...] [pytest's options]")
        print("CHECKOUT is one of JAX, with the folder tests.")
        return 2
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    modules = [arg for arg in args[1:] if (tests / f"{arg}.py").is_file()]
    options = [arg for arg in args[1:] if arg not in modules]
    return pytest.main(
        [
            # The settings of JAX and of this suite are left out; the JAX that is installed is used.
            *("-c", os.devnull, "--rootdir", str(tests), "--noconftest"),
            *(
                "--import-mode",
                "importlib",
                "-p",
                "no:cacheprovider",
                "-p",
                "upstream.plugin",
            ),
            # Modules of another version of JAX may import names that this version does not have.
            "--continue-on-collection-errors",
            *("-q", "--tb", "short", *options),
            *(str(tests / f"{name}.py") for name in modules or MODULES),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
