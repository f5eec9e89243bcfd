"""Ready value types: matrices with structure, weights, sparse arrays, units.

The package and the rules of all types are loaded at their first use. `Sparse` is loaded
separately, because JAX's sparse matrices take as long to load as all other types together.
"""

import typing as _typing

from . import _level as _level
from ._adapters import (
    choose_adapters as choose_adapters,
    dropout as dropout,
    merge as merge,
    stack_adapters as stack_adapters,
)
from ._annotations import (
    functions as _annotated_functions,
    interval_softmax as _interval_softmax,
    unitful_linalg as _unitful_linalg,
)
from ._annotations.declaration import (
    Annotated as Annotated,
    annotation_rule as annotation_rule,
)
from ._annotations.interval import Interval as Interval
from ._annotations.keys import Threefry as Threefry
from ._annotations.masked import Masked as Masked
from ._annotations.named import Named as Named
from ._annotations.quantities import (
    constant as constant,
    converting_units as converting_units,
    parse as parse,
    plot_units as plot_units,
)
from ._annotations.tagged import Tagged as Tagged
from ._annotations.unitful import Unitful as Unitful
from ._annotations.units import (
    Units as Units,
    UnitsError as UnitsError,
    register_unit as register_unit,
)
from ._base import products as _products_of_all
from ._base.linear import Linear as Linear
from ._base.structured import Structured as Structured
from ._matrices.banded import Banded as Banded, Tridiagonal as Tridiagonal
from ._matrices.block_diagonal import BlockDiagonal as BlockDiagonal
from ._matrices.determinant import Determinant as Determinant
from ._matrices.iterative import (
    conjugate_gradients as conjugate_gradients,
    stochastic_logdet as stochastic_logdet,
)
from ._matrices.kronecker import Kronecker as Kronecker
from ._matrices.low_rank import LowRank as LowRank
from ._matrices.matrix import Matrix as Matrix
from ._matrices.monomial import (
    Diagonal as Diagonal,
    Identity as Identity,
    Permutation as Permutation,
    ScalarMatrix as ScalarMatrix,
)
from ._matrices.one_hot import OneHot as OneHot, Picked as Picked
from ._matrices.product import Product as Product
from ._matrices.scaled import Scaled as Scaled
from ._matrices.structured_sparse import NMSparse as NMSparse
from ._matrices.sum import Sum as Sum
from ._matrices.symmetric import Symmetric as Symmetric
from ._matrices.toeplitz import Circulant as Circulant, Toeplitz as Toeplitz
from ._matrices.triangular import Triangular as Triangular
from ._strict import strict_zeros as strict_zeros
from ._trees import (
    adapt as adapt,
    combine as combine,
    freeze as freeze,
    nbytes as nbytes,
    partition as partition,
    train_only as train_only,
)
from ._uniform import Constant as Constant, Known as Known, Zero as Zero
from ._weights import (
    activations as _activations,
    products as _products,
    ragged as _ragged,
    transposes as _transposes,
)
from ._weights.calibrate import calibrate as calibrate
from ._weights.coded import Coded as Coded
from ._weights.concatenated import Concatenated as Concatenated
from ._weights.dora import Dora as Dora
from ._weights.fake import FakeQuantised as FakeQuantised
from ._weights.float8 import Float8 as Float8
from ._weights.gguf import GGUF as GGUF
from ._weights.kernels import gpu_kernels as gpu_kernels
from ._weights.lora import Lora as Lora
from ._weights.microscaled import Microscaled as Microscaled
from ._weights.moments import quantised_moments as quantised_moments
from ._weights.nf4 import NF4 as NF4
from ._weights.quantise import quantise as quantise
from ._weights.quantised import Quantised as Quantised
from ._weights.rescaled import Rescaled as Rescaled
from ._weights.updates import quantised_updates as quantised_updates
from ._weights.weight_axes import WeightAxes as WeightAxes, weight_axes as weight_axes


if _typing.TYPE_CHECKING:
    from ._matrices.sparse import Sparse as Sparse
else:

    def __getattr__(name: str) -> object:
        if name == "Sparse":
            from ._matrices.sparse import Sparse

            return Sparse
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    # Also what is not loaded yet: for completion, and for ``import *``.
    __all__ = sorted({n for n in globals() if not n.startswith("_")} | {"Sparse"})

    def __dir__() -> list[str]:
        return sorted({*globals(), "Sparse"})
