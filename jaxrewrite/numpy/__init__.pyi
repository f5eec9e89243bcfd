"""`jax.numpy`, with every function transformed.

The signatures are those of JAX (Copyright 2018 The JAX Authors, Apache License 2.0).
"""

import builtins
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, overload

import jax
import jax.typing
import numpy as _np
from jax.lax import PrecisionLike
from jax.numpy import (
    ComplexWarning as ComplexWarning,
    array_repr as array_repr,
    array_str as array_str,
    bartlett as bartlett,
    bfloat16 as bfloat16,
    blackman as blackman,
    bool as bool,
    bool_ as bool_,
    broadcast_shapes as broadcast_shapes,
    c_ as c_,
    can_cast as can_cast,
    cdouble as cdouble,
    character as character,
    complex64 as complex64,
    complex128 as complex128,
    complex_ as complex_,
    complexfloating as complexfloating,
    csingle as csingle,
    diag_indices as diag_indices,
    double as double,
    dtype as dtype,
    e as e,
    empty as empty,
    euler_gamma as euler_gamma,
    finfo as finfo,
    flexible as flexible,
    float4_e2m1fn as float4_e2m1fn,
    float8_e3m4 as float8_e3m4,
    float8_e4m3 as float8_e4m3,
    float8_e4m3b11fnuz as float8_e4m3b11fnuz,
    float8_e4m3fn as float8_e4m3fn,
    float8_e4m3fnuz as float8_e4m3fnuz,
    float8_e5m2 as float8_e5m2,
    float8_e5m2fnuz as float8_e5m2fnuz,
    float8_e8m0fnu as float8_e8m0fnu,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    float_ as float_,
    floating as floating,
    from_dlpack as from_dlpack,
    frombuffer as frombuffer,
    fromfile as fromfile,
    fromiter as fromiter,
    frompyfunc as frompyfunc,
    fromstring as fromstring,
    generic as generic,
    get_printoptions as get_printoptions,
    hamming as hamming,
    hanning as hanning,
    identity as identity,
    iinfo as iinfo,
    index_exp as index_exp,
    indices as indices,
    inexact as inexact,
    inf as inf,
    int2 as int2,
    int4 as int4,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    int_ as int_,
    integer as integer,
    iscomplexobj as iscomplexobj,
    isdtype as isdtype,
    isrealobj as isrealobj,
    isscalar as isscalar,
    issubdtype as issubdtype,
    iterable as iterable,
    load as load,
    mask_indices as mask_indices,
    mgrid as mgrid,
    nan as nan,
    ndarray as ndarray,
    newaxis as newaxis,
    number as number,
    object_ as object_,
    ogrid as ogrid,
    ones as ones,
    pi as pi,
    printoptions as printoptions,
    promote_types as promote_types,
    r_ as r_,
    result_type as result_type,
    s_ as s_,
    save as save,
    savez as savez,
    set_printoptions as set_printoptions,
    signedinteger as signedinteger,
    single as single,
    tri as tri,
    tril_indices as tril_indices,
    triu_indices as triu_indices,
    ufunc as ufunc,
    uint as uint,
    uint2 as uint2,
    uint4 as uint4,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
    unsignedinteger as unsignedinteger,
    vectorize as vectorize,
    zeros as zeros,
)
from jax.sharding import NamedSharding, PartitionSpec as P, Sharding as _Sharding

from .._core.value import Value as _Value
from . import fft as fft, linalg as linalg

_Array: TypeAlias = jax.Array | _Value
_Result: TypeAlias = jax.Array | Any  # An array, or a value, as the rules say.
ArrayLike: TypeAlias = jax.typing.ArrayLike | _Value
DTypeLike: TypeAlias = jax.typing.DTypeLike
_Axis: TypeAlias = int | str | Sequence[int | str] | None
_Device: TypeAlias = Any  # JAX does not say which type it is.

class BinaryUfunc(Protocol):
    @property
    def nin(self) -> int: ...
    @property
    def nout(self) -> int: ...
    @property
    def nargs(self) -> int: ...
    @property
    def identity(self) -> builtins.bool | int | float: ...
    def __call__(self, x: ArrayLike, y: ArrayLike, /) -> _Result: ...
    def reduce(
        self,
        a: ArrayLike,
        /,
        *,
        axis: int | str | None = ...,
        dtype: DTypeLike | None = ...,
        out: None = ...,
        keepdims: builtins.bool = ...,
        initial: ArrayLike | None = ...,
        where: ArrayLike | None = ...,
    ) -> _Result: ...
    def accumulate(
        self,
        a: ArrayLike,
        /,
        *,
        axis: int | str = ...,
        dtype: DTypeLike | None = ...,
        out: None = ...,
    ) -> _Result: ...
    def at(
        self,
        a: ArrayLike,
        indices: Any,
        b: ArrayLike | None = ...,
        /,
        *,
        inplace: builtins.bool = ...,
    ) -> _Result: ...
    def reduceat(
        self,
        a: ArrayLike,
        indices: Any,
        *,
        axis: int | str = ...,
        dtype: DTypeLike | None = ...,
        out: None = ...,
    ) -> _Result: ...
    def outer(self, a: ArrayLike, b: ArrayLike, /) -> _Result: ...

def abs(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.absolute`.

    `transform` of `jax.numpy.abs`.
    """

def absolute(x: ArrayLike, /) -> _Result:
    """Calculate the absolute value element-wise.

    `transform` of `jax.numpy.absolute`.
    """

def acos(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.arccos`

    `transform` of `jax.numpy.acos`.
    """

def acosh(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.arccosh`

    `transform` of `jax.numpy.acosh`.
    """

add: BinaryUfunc
"""Add two arrays element-wise.

`transform` of `jax.numpy.add`.
"""

def amax(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Alias of :func:`jax.numpy.max`.

    `transform` of `jax.numpy.amax`.
    """

def amin(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Alias of :func:`jax.numpy.min`.

    `transform` of `jax.numpy.amin`.
    """

def all(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    *,
    where: ArrayLike | None = ...,
) -> _Result:
    """Test whether all array elements along a given axis evaluate to True.

    `transform` of `jax.numpy.all`.
    """

def allclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = ...,
    atol: ArrayLike = ...,
    equal_nan: builtins.bool = ...,
) -> _Result:
    """Check if two arrays are element-wise approximately equal within a tolerance.

    `transform` of `jax.numpy.allclose`.
    """

def angle(z: ArrayLike, deg: builtins.bool = ...) -> _Result:
    """Return the angle of a complex valued number or array.

    `transform` of `jax.numpy.angle`.
    """

def any(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    *,
    where: ArrayLike | None = ...,
) -> _Result:
    """Test whether any of the array elements along a given axis evaluate to True.

    `transform` of `jax.numpy.any`.
    """

def append(arr: ArrayLike, values: ArrayLike, axis: int | str | None = ...) -> _Result:
    """Return a new array with values appended to the end of the original array.

    `transform` of `jax.numpy.append`.
    """

def apply_along_axis(
    func1d: Callable[..., Any], axis: int | str, arr: ArrayLike, *args: Any, **kwargs: Any
) -> _Result:
    """Apply a function to 1D array slices along an axis.

    `transform` of `jax.numpy.apply_along_axis`.
    """

def apply_over_axes(
    func: Callable[..., Any], a: ArrayLike, axes: Sequence[int | str]
) -> _Result:
    """Apply a function repeatedly over specified axes.

    `transform` of `jax.numpy.apply_over_axes`.
    """

def arange(
    start: ArrayLike | Any,
    stop: ArrayLike | Any | None = ...,
    step: ArrayLike | None = ...,
    dtype: DTypeLike | None = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Create an array of evenly-spaced values.

    `transform` of `jax.numpy.arange`.
    """

def arccos(x: ArrayLike, /) -> _Result:
    """Compute element-wise inverse of trigonometric cosine of input.

    `transform` of `jax.numpy.arccos`.
    """

def arccosh(x: ArrayLike, /) -> _Result:
    """Calculate element-wise inverse of hyperbolic cosine of input.

    `transform` of `jax.numpy.arccosh`.
    """

def arcsin(x: ArrayLike, /) -> _Result:
    """Compute element-wise inverse of trigonometric sine of input.

    `transform` of `jax.numpy.arcsin`.
    """

def arcsinh(x: ArrayLike, /) -> _Result:
    """Calculate element-wise inverse of hyperbolic sine of input.

    `transform` of `jax.numpy.arcsinh`.
    """

def arctan(x: ArrayLike, /) -> _Result:
    """Compute element-wise inverse of trigonometric tangent of input.

    `transform` of `jax.numpy.arctan`.
    """

def arctan2(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Compute the arctangent of x1/x2, choosing the correct quadrant.

    `transform` of `jax.numpy.arctan2`.
    """

def arctanh(x: ArrayLike, /) -> _Result:
    """Calculate element-wise inverse of hyperbolic tangent of input.

    `transform` of `jax.numpy.arctanh`.
    """

def argmax(
    a: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    keepdims: builtins.bool | None = ...,
) -> _Result:
    """Return the index of the maximum value of an array.

    `transform` of `jax.numpy.argmax`.
    """

def argmin(
    a: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    keepdims: builtins.bool | None = ...,
) -> _Result:
    """Return the index of the minimum value of an array.

    `transform` of `jax.numpy.argmin`.
    """

def argpartition(a: ArrayLike, kth: int, axis: int | str = ...) -> _Result:
    """Returns indices that partially sort an array.

    `transform` of `jax.numpy.argpartition`.
    """

def argsort(
    a: ArrayLike,
    axis: int | str | None = ...,
    *,
    stable: builtins.bool = ...,
    descending: builtins.bool = ...,
    kind: str | None = ...,
    order: None = ...,
    dtype: DTypeLike | None = ...,
) -> _Result:
    """Return indices that sort an array.

    `transform` of `jax.numpy.argsort`.
    """

def argwhere(
    a: ArrayLike, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> _Result:
    """Find the indices of nonzero array elements

    `transform` of `jax.numpy.argwhere`.
    """

def around(a: ArrayLike, decimals: int = ..., out: None = ...) -> _Result:
    """Alias of :func:`jax.numpy.round`

    `transform` of `jax.numpy.around`.
    """

def array(
    object: Any,
    dtype: DTypeLike | None = ...,
    copy: builtins.bool = ...,
    order: str | None = ...,
    ndmin: int = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Convert an object to a JAX array.

    `transform` of `jax.numpy.array`.
    """

def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: builtins.bool = ...) -> _Result:
    """Check if two arrays are element-wise equal.

    `transform` of `jax.numpy.array_equal`.
    """

def array_equiv(a1: ArrayLike, a2: ArrayLike) -> _Result:
    """Check if two arrays are element-wise equal.

    `transform` of `jax.numpy.array_equiv`.
    """

def array_split(
    ary: ArrayLike,
    indices_or_sections: int | Sequence[int] | ArrayLike,
    axis: int | str = ...,
) -> list[_Result]:
    """Split an array into sub-arrays.

    `transform` of `jax.numpy.array_split`.
    """

def asarray(
    a: Any,
    dtype: DTypeLike | None = ...,
    order: str | None = ...,
    *,
    copy: builtins.bool | None = ...,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Convert an object to a JAX array.

    `transform` of `jax.numpy.asarray`.
    """

def asin(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.arcsin`

    `transform` of `jax.numpy.asin`.
    """

def asinh(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.arcsinh`

    `transform` of `jax.numpy.asinh`.
    """

def astype(
    a: ArrayLike,
    dtype: DTypeLike | None,
    /,
    *,
    copy: builtins.bool = ...,
    device: _Device | _Sharding | None = ...,
) -> _Result:
    """Convert an array to a specified dtype.

    `transform` of `jax.numpy.astype`.
    """

def atan(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.arctan`

    `transform` of `jax.numpy.atan`.
    """

def atan2(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.arctan2`

    `transform` of `jax.numpy.atan2`.
    """

def atanh(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.arctanh`

    `transform` of `jax.numpy.atanh`.
    """

@overload
def atleast_1d() -> list[_Result]:
    """Convert inputs to arrays with at least 1 dimension.

    `transform` of `jax.numpy.atleast_1d`.
    """

@overload
def atleast_1d(x: ArrayLike, /) -> _Result: ...
@overload
def atleast_1d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike) -> list[_Result]: ...
@overload
def atleast_2d() -> list[_Result]:
    """Convert inputs to arrays with at least 2 dimensions.

    `transform` of `jax.numpy.atleast_2d`.
    """

@overload
def atleast_2d(x: ArrayLike, /) -> _Result: ...
@overload
def atleast_2d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike) -> list[_Result]: ...
@overload
def atleast_3d() -> list[_Result]:
    """Convert inputs to arrays with at least 3 dimensions.

    `transform` of `jax.numpy.atleast_3d`.
    """

@overload
def atleast_3d(x: ArrayLike, /) -> _Result: ...
@overload
def atleast_3d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike) -> list[_Result]: ...
@overload
def average(
    a: ArrayLike,
    axis: _Axis = ...,
    weights: ArrayLike | None = ...,
    returned: Literal[False] = ...,
    keepdims: builtins.bool = ...,
) -> _Result:
    """Compute the weighed average.

    `transform` of `jax.numpy.average`.
    """

@overload
def average(
    a: ArrayLike,
    axis: _Axis = ...,
    weights: ArrayLike | None = ...,
    *,
    returned: Literal[True],
    keepdims: builtins.bool = ...,
) -> tuple[_Result, _Result]: ...
@overload
def average(
    a: ArrayLike,
    axis: _Axis = ...,
    weights: ArrayLike | None = ...,
    returned: builtins.bool = ...,
    keepdims: builtins.bool = ...,
) -> _Result | tuple[_Result, _Result]: ...
def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = ...,
    minlength: int = ...,
    *,
    length: int | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Count the number of occurrences of each value in an integer array.

    `transform` of `jax.numpy.bincount`.
    """

bitwise_and: BinaryUfunc
"""Compute the bitwise AND operation elementwise.

`transform` of `jax.numpy.bitwise_and`.
"""

def bitwise_count(x: ArrayLike, /) -> _Result:
    """Counts the number of 1 bits in the binary representation of the absolute value of
    each element of ``x``.

    `transform` of `jax.numpy.bitwise_count`.
    """

def bitwise_invert(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.invert`.

    `transform` of `jax.numpy.bitwise_invert`.
    """

def bitwise_left_shift(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.left_shift`.

    `transform` of `jax.numpy.bitwise_left_shift`.
    """

def bitwise_not(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.invert`.

    `transform` of `jax.numpy.bitwise_not`.
    """

bitwise_or: BinaryUfunc
"""Compute the bitwise OR operation elementwise.

`transform` of `jax.numpy.bitwise_or`.
"""

def bitwise_right_shift(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.right_shift`.

    `transform` of `jax.numpy.bitwise_right_shift`.
    """

bitwise_xor: BinaryUfunc
"""Compute the bitwise XOR operation elementwise.

`transform` of `jax.numpy.bitwise_xor`.
"""

def block(
    arrays: ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]],
) -> _Result:
    """Create an array from a list of blocks.

    `transform` of `jax.numpy.block`.
    """

def broadcast_arrays(*args: ArrayLike) -> list[_Result]:
    """Broadcast arrays to a common shape.

    `transform` of `jax.numpy.broadcast_arrays`.
    """

def broadcast_to(
    array: ArrayLike, shape: Any, *, out_sharding: NamedSharding | P | None = ...
) -> _Result:
    """Broadcast an array to a specified shape.

    `transform` of `jax.numpy.broadcast_to`.
    """

def cbrt(x: ArrayLike, /) -> _Result:
    """Calculates element-wise cube root of the input array.

    `transform` of `jax.numpy.cbrt`.
    """

def ceil(x: ArrayLike, /) -> _Result:
    """Round input to the nearest integer upwards.

    `transform` of `jax.numpy.ceil`.
    """

def choose(
    a: ArrayLike,
    choices: _Array | _np.ndarray[Any, Any] | Sequence[ArrayLike],
    out: None = ...,
    mode: str = ...,
) -> _Result:
    """Construct an array by stacking slices of choice arrays.

    `transform` of `jax.numpy.choose`.
    """

def clip(
    x: ArrayLike | None = ...,
    /,
    min: ArrayLike | None = ...,
    max: ArrayLike | None = ...,
    *,
    a: ArrayLike | Any | None = ...,
    a_min: ArrayLike | Any | None = ...,
    a_max: ArrayLike | Any | None = ...,
) -> _Result:
    """Clip array values to a specified range.

    `transform` of `jax.numpy.clip`.
    """

def column_stack(tup: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike]) -> _Result:
    """Stack arrays column-wise.

    `transform` of `jax.numpy.column_stack`.
    """

def compress(
    condition: ArrayLike,
    a: ArrayLike,
    axis: int | str | None = ...,
    *,
    size: int | None = ...,
    fill_value: ArrayLike = ...,
    out: None = ...,
) -> _Result:
    """Compress an array along a given axis using a boolean condition.

    `transform` of `jax.numpy.compress`.
    """

def concat(arrays: Sequence[ArrayLike], /, *, axis: int | str | None = ...) -> _Result:
    """Join arrays along an existing axis.

    `transform` of `jax.numpy.concat`.
    """

def concatenate(
    arrays: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike],
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
) -> _Result:
    """Join arrays along an existing axis.

    `transform` of `jax.numpy.concatenate`.
    """

def conjugate(x: ArrayLike, /) -> _Result:
    """Return element-wise complex-conjugate of the input.

    `transform` of `jax.numpy.conjugate`.
    """

def conj(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.conjugate`

    `transform` of `jax.numpy.conj`.
    """

def convolve(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = ...,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> _Result:
    """Convolution of two one dimensional arrays.

    `transform` of `jax.numpy.convolve`.
    """

def copy(a: ArrayLike, order: str | None = ...) -> _Result:
    """Return a copy of the array.

    `transform` of `jax.numpy.copy`.
    """

def copysign(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Copies the sign of each element in ``x2`` to the corresponding element in ``x1``.

    `transform` of `jax.numpy.copysign`.
    """

def corrcoef(
    x: ArrayLike,
    y: ArrayLike | None = ...,
    rowvar: builtins.bool = ...,
    dtype: DTypeLike | None = ...,
) -> _Result:
    """Compute the Pearson correlation coefficients.

    `transform` of `jax.numpy.corrcoef`.
    """

def correlate(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = ...,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> _Result:
    """Correlation of two one dimensional arrays.

    `transform` of `jax.numpy.correlate`.
    """

def cos(x: ArrayLike, /) -> _Result:
    """Compute a trigonometric cosine of each element of input.

    `transform` of `jax.numpy.cos`.
    """

def cosh(x: ArrayLike, /) -> _Result:
    """Calculate element-wise hyperbolic cosine of input.

    `transform` of `jax.numpy.cosh`.
    """

def count_nonzero(
    a: ArrayLike, axis: _Axis = ..., keepdims: builtins.bool = ...
) -> _Result:
    """Return the number of nonzero elements along a given axis.

    `transform` of `jax.numpy.count_nonzero`.
    """

def cov(
    m: ArrayLike,
    y: ArrayLike | None = ...,
    rowvar: builtins.bool = ...,
    bias: builtins.bool = ...,
    ddof: int | None = ...,
    fweights: ArrayLike | None = ...,
    aweights: ArrayLike | None = ...,
    dtype: DTypeLike | None = ...,
) -> _Result:
    """Estimate the weighted sample covariance.

    `transform` of `jax.numpy.cov`.
    """

def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = ...,
    axisb: int = ...,
    axisc: int = ...,
    axis: int | str | None = ...,
) -> _Result:
    """Compute the (batched) cross product of two arrays.

    `transform` of `jax.numpy.cross`.
    """

def cumprod(
    a: ArrayLike,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> _Result:
    """Cumulative product of elements along an axis.

    `transform` of `jax.numpy.cumprod`.
    """

def cumsum(
    a: ArrayLike,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> _Result:
    """Cumulative sum of elements along an axis.

    `transform` of `jax.numpy.cumsum`.
    """

def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    include_initial: builtins.bool = ...,
) -> _Result:
    """Cumulative product along the axis of an array.

    `transform` of `jax.numpy.cumulative_prod`.
    """

def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    include_initial: builtins.bool = ...,
) -> _Result:
    """Cumulative sum along the axis of an array.

    `transform` of `jax.numpy.cumulative_sum`.
    """

def deg2rad(x: ArrayLike, /) -> _Result:
    """Convert angles from degrees to radians.

    `transform` of `jax.numpy.deg2rad`.
    """

def degrees(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.rad2deg`

    `transform` of `jax.numpy.degrees`.
    """

def delete(
    arr: ArrayLike,
    obj: ArrayLike | slice,
    axis: int | str | None = ...,
    *,
    assume_unique_indices: builtins.bool = ...,
) -> _Result:
    """Delete entry or entries from an array.

    `transform` of `jax.numpy.delete`.
    """

def diag(v: ArrayLike, k: int = ...) -> _Result:
    """Returns the specified diagonal or constructs a diagonal array.

    `transform` of `jax.numpy.diag`.
    """

def diag_indices_from(arr: ArrayLike) -> tuple[_Result, ...]:
    """Return indices for accessing the main diagonal of a given array.

    `transform` of `jax.numpy.diag_indices_from`.
    """

def diagflat(v: ArrayLike, k: int = ...) -> _Result:
    """Return a 2-D array with the flattened input array laid out on the diagonal.

    `transform` of `jax.numpy.diagflat`.
    """

def diagonal(
    a: ArrayLike, offset: ArrayLike = ..., axis1: int | str = ..., axis2: int | str = ...
) -> Any:
    """Returns the specified diagonal of an array.

    `transform` of `jax.numpy.diagonal`.
    """

def diff(
    a: ArrayLike,
    n: int = ...,
    axis: int | str = ...,
    prepend: ArrayLike | None = ...,
    append: ArrayLike | None = ...,
) -> _Result:
    """Calculate n-th order difference between array elements along a given axis.

    `transform` of `jax.numpy.diff`.
    """

def digitize(
    x: ArrayLike, bins: ArrayLike, right: builtins.bool = ..., *, method: str | None = ...
) -> _Result:
    """Convert an array to bin indices.

    `transform` of `jax.numpy.digitize`.
    """

def divide(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.true_divide`.

    `transform` of `jax.numpy.divide`.
    """

def divmod(x: ArrayLike, y: ArrayLike, /) -> tuple[_Result, _Result]:
    """Calculates the integer quotient and remainder of x1 by x2 element-wise

    `transform` of `jax.numpy.divmod`.
    """

def dot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Compute the dot product of two arrays.

    `transform` of `jax.numpy.dot`.
    """

def dsplit(ary: ArrayLike, indices_or_sections: int | ArrayLike) -> list[_Result]:
    """Split an array into sub-arrays depth-wise.

    `transform` of `jax.numpy.dsplit`.
    """

def dstack(
    tup: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike], dtype: DTypeLike | None = ...
) -> _Result:
    """Stack arrays depth-wise.

    `transform` of `jax.numpy.dstack`.
    """

def ediff1d(
    ary: ArrayLike, to_end: ArrayLike | None = ..., to_begin: ArrayLike | None = ...
) -> _Result:
    """Compute the differences of the elements of the flattened array.

    `transform` of `jax.numpy.ediff1d`.
    """

@overload
def einsum(
    subscript: str,
    /,
    *operands: ArrayLike,
    out: None = ...,
    optimize: str | builtins.bool | list[tuple[int, ...]] = ...,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    _dot_general: Callable[..., _Array] = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Einstein summation

    `transform` of `jax.numpy.einsum`.
    """

@overload
def einsum(
    arr: ArrayLike,
    axes: Sequence[Any],
    /,
    *operands: ArrayLike | Sequence[Any],
    out: None = ...,
    optimize: str | builtins.bool | list[tuple[int, ...]] = ...,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    _dot_general: Callable[..., _Array] = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result: ...
@overload
def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = ...,
    optimize: str | builtins.bool | list[tuple[int, ...]] = ...,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    _dot_general: Callable[..., _Array] = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result: ...
@overload
def einsum_path(
    subscripts: str,
    /,
    *operands: ArrayLike,
    optimize: str | builtins.bool | list[tuple[int, ...]] = ...,
) -> tuple[list[tuple[int, ...]], Any]:
    """Evaluates the optimal contraction path without evaluating the einsum.

    `transform` of `jax.numpy.einsum_path`.
    """

@overload
def einsum_path(
    arr: ArrayLike,
    axes: Sequence[Any],
    /,
    *operands: ArrayLike | Sequence[Any],
    optimize: str | builtins.bool | list[tuple[int, ...]] = ...,
) -> tuple[list[tuple[int, ...]], Any]: ...
@overload
def einsum_path(
    subscripts: Any,
    /,
    *operands: ArrayLike,
    optimize: str | builtins.bool | list[tuple[int, ...]] = ...,
) -> tuple[list[tuple[int, ...]], Any]: ...
def empty_like(
    prototype: ArrayLike | Any,
    dtype: DTypeLike | None = ...,
    shape: Any = ...,
    *,
    device: _Device | _Sharding | None = ...,
) -> _Result:
    """Create an empty array with the same shape and dtype as an array.

    `transform` of `jax.numpy.empty_like`.
    """

def equal(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Returns element-wise truth value of ``x == y``.

    `transform` of `jax.numpy.equal`.
    """

def exp(x: ArrayLike, /) -> _Result:
    """Calculate element-wise exponential of the input.

    `transform` of `jax.numpy.exp`.
    """

def exp2(x: ArrayLike, /) -> _Result:
    """Calculate element-wise base-2 exponential of input.

    `transform` of `jax.numpy.exp2`.
    """

def expand_dims(a: ArrayLike, axis: int | str | Sequence[int | str]) -> _Result:
    """Insert dimensions of length 1 into array

    `transform` of `jax.numpy.expand_dims`.
    """

def expm1(x: ArrayLike, /) -> _Result:
    """Calculate ``exp(x)-1`` of each element of the input.

    `transform` of `jax.numpy.expm1`.
    """

def extract(
    condition: ArrayLike,
    arr: ArrayLike,
    *,
    size: int | None = ...,
    fill_value: ArrayLike = ...,
) -> _Result:
    """Return the elements of an array that satisfy a condition.

    `transform` of `jax.numpy.extract`.
    """

def eye(
    N: Any,
    M: Any | None = ...,
    k: int | ArrayLike = ...,
    dtype: DTypeLike | None = ...,
    *,
    device: _Device | _Sharding | None = ...,
) -> _Result:
    """Create a square or rectangular identity matrix

    `transform` of `jax.numpy.eye`.
    """

def fabs(x: ArrayLike, /) -> _Result:
    """Compute the element-wise absolute values of the real-valued input.

    `transform` of `jax.numpy.fabs`.
    """

def flatnonzero(
    a: ArrayLike,
    *,
    size: int | None = ...,
    fill_value: None | ArrayLike | tuple[ArrayLike] = ...,
) -> _Result:
    """Return indices of nonzero elements in a flattened array

    `transform` of `jax.numpy.flatnonzero`.
    """

def flip(m: ArrayLike, axis: int | str | Sequence[int | str] | None = ...) -> _Result:
    """Reverse the order of elements of an array along the given axis.

    `transform` of `jax.numpy.flip`.
    """

def fliplr(m: ArrayLike) -> _Result:
    """Reverse the order of elements of an array along axis 1.

    `transform` of `jax.numpy.fliplr`.
    """

def flipud(m: ArrayLike) -> _Result:
    """Reverse the order of elements of an array along axis 0.

    `transform` of `jax.numpy.flipud`.
    """

def float_power(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Calculate element-wise base ``x`` exponential of ``y``.

    `transform` of `jax.numpy.float_power`.
    """

def floor(x: ArrayLike, /) -> _Result:
    """Round input to the nearest integer downwards.

    `transform` of `jax.numpy.floor`.
    """

def floor_divide(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Calculates the floor division of x1 by x2 element-wise

    `transform` of `jax.numpy.floor_divide`.
    """

def fmax(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Return element-wise maximum of the input arrays.

    `transform` of `jax.numpy.fmax`.
    """

def fmin(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Return element-wise minimum of the input arrays.

    `transform` of `jax.numpy.fmin`.
    """

def fmod(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Calculate element-wise floating-point modulo operation.

    `transform` of `jax.numpy.fmod`.
    """

def frexp(x: ArrayLike, /) -> tuple[_Result, _Result]:
    """Split floating point values into mantissa and twos exponent.

    `transform` of `jax.numpy.frexp`.
    """

def fromfunction(
    function: Callable[..., _Array], shape: Any, *, dtype: DTypeLike = ..., **kwargs: Any
) -> _Result:
    """Create an array from a function applied over indices.

    `transform` of `jax.numpy.fromfunction`.
    """

def full(
    shape: Any,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Create an array full of a specified value.

    `transform` of `jax.numpy.full`.
    """

def full_like(
    a: ArrayLike | Any,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = ...,
    shape: Any = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Create an array full of a specified value with the same shape and dtype as an array.

    `transform` of `jax.numpy.full_like`.
    """

def gcd(x1: ArrayLike, x2: ArrayLike) -> _Result:
    """Compute the greatest common divisor of two arrays.

    `transform` of `jax.numpy.gcd`.
    """

def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = ...,
    endpoint: builtins.bool = ...,
    dtype: DTypeLike | None = ...,
    axis: int | str = ...,
) -> _Result:
    """Generate geometrically-spaced values.

    `transform` of `jax.numpy.geomspace`.
    """

def gradient(
    f: ArrayLike,
    *varargs: ArrayLike,
    axis: int | str | Sequence[int | str] | None = ...,
    edge_order: int | None = ...,
) -> _Result | list[_Result]:
    """Compute the numerical gradient of a sampled function.

    `transform` of `jax.numpy.gradient`.
    """

def greater(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Return element-wise truth value of ``x > y``.

    `transform` of `jax.numpy.greater`.
    """

def greater_equal(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Return element-wise truth value of ``x >= y``.

    `transform` of `jax.numpy.greater_equal`.
    """

def heaviside(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Compute the heaviside step function.

    `transform` of `jax.numpy.heaviside`.
    """

def histogram(
    a: ArrayLike,
    bins: ArrayLike = ...,
    range: Sequence[ArrayLike] | None = ...,
    weights: ArrayLike | None = ...,
    density: builtins.bool | None = ...,
) -> tuple[_Result, _Result]:
    """Compute a 1-dimensional histogram.

    `transform` of `jax.numpy.histogram`.
    """

def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = ...,
    range: Sequence[None | _Array | Sequence[ArrayLike]] | None = ...,
    weights: ArrayLike | None = ...,
    density: builtins.bool | None = ...,
) -> tuple[_Result, _Result, _Result]:
    """Compute a 2-dimensional histogram.

    `transform` of `jax.numpy.histogram2d`.
    """

def histogram_bin_edges(
    a: ArrayLike,
    bins: ArrayLike = ...,
    range: None | _Array | Sequence[ArrayLike] = ...,
    weights: ArrayLike | None = ...,
) -> _Result:
    """Compute the bin edges for a histogram.

    `transform` of `jax.numpy.histogram_bin_edges`.
    """

def histogramdd(
    sample: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = ...,
    range: Sequence[None | _Array | Sequence[ArrayLike]] | None = ...,
    weights: ArrayLike | None = ...,
    density: builtins.bool | None = ...,
) -> tuple[_Result, list[_Result]]:
    """Compute an N-dimensional histogram.

    `transform` of `jax.numpy.histogramdd`.
    """

def hsplit(ary: ArrayLike, indices_or_sections: int | ArrayLike) -> list[_Result]:
    """Split an array into sub-arrays horizontally.

    `transform` of `jax.numpy.hsplit`.
    """

def hstack(
    tup: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike], dtype: DTypeLike | None = ...
) -> _Result:
    """Horizontally stack arrays.

    `transform` of `jax.numpy.hstack`.
    """

def hypot(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Return element-wise hypotenuse for the given legs of a right angle triangle.

    `transform` of `jax.numpy.hypot`.
    """

def i0(x: ArrayLike) -> _Result:
    """Calculate modified Bessel function of first kind, zeroth order.

    `transform` of `jax.numpy.i0`.
    """

def imag(x: ArrayLike, /) -> _Result:
    """Return element-wise imaginary of part of the complex argument.

    `transform` of `jax.numpy.imag`.
    """

def inner(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> _Result:
    """Compute the inner product of two arrays.

    `transform` of `jax.numpy.inner`.
    """

def insert(
    arr: ArrayLike, obj: ArrayLike | slice, values: ArrayLike, axis: int | str | None = ...
) -> _Result:
    """Insert entries into an array at specified indices.

    `transform` of `jax.numpy.insert`.
    """

def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | str | None = ...,
    right: ArrayLike | str | None = ...,
    period: ArrayLike | None = ...,
) -> _Result:
    """One-dimensional linear interpolation.

    `transform` of `jax.numpy.interp`.
    """

def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: builtins.bool = ...,
    return_indices: builtins.bool = ...,
    *,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
) -> _Result | tuple[_Result, _Result, _Result]:
    """Compute the set intersection of two 1D arrays.

    `transform` of `jax.numpy.intersect1d`.
    """

def invert(x: ArrayLike, /) -> _Result:
    """Compute the bitwise inversion of an input.

    `transform` of `jax.numpy.invert`.
    """

def isclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = ...,
    atol: ArrayLike = ...,
    equal_nan: builtins.bool = ...,
) -> _Result:
    """Check if the elements of two arrays are approximately equal within a tolerance.

    `transform` of `jax.numpy.isclose`.
    """

def iscomplex(x: ArrayLike) -> _Result:
    """Return boolean array showing where the input is complex.

    `transform` of `jax.numpy.iscomplex`.
    """

def isfinite(x: ArrayLike, /) -> _Result:
    """Return a boolean array indicating whether each element of input is finite.

    `transform` of `jax.numpy.isfinite`.
    """

def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: builtins.bool = ...,
    invert: builtins.bool = ...,
    *,
    method: str = ...,
) -> _Result:
    """Determine whether elements in ``element`` appear in ``test_elements``.

    `transform` of `jax.numpy.isin`.
    """

def isinf(x: ArrayLike, /) -> _Result:
    """Return a boolean array indicating whether each element of input is infinite.

    `transform` of `jax.numpy.isinf`.
    """

def isnan(x: ArrayLike, /) -> _Result:
    """Returns a boolean array indicating whether each element of input is ``NaN``.

    `transform` of `jax.numpy.isnan`.
    """

def isneginf(x: ArrayLike, /) -> _Result:
    """Return boolean array indicating whether each element of input is negative infinite.

    `transform` of `jax.numpy.isneginf`.
    """

def isposinf(x: ArrayLike, /) -> _Result:
    """Return boolean array indicating whether each element of input is positive infinite.

    `transform` of `jax.numpy.isposinf`.
    """

def isreal(x: ArrayLike) -> _Result:
    """Return boolean array showing where the input is real.

    `transform` of `jax.numpy.isreal`.
    """

def ix_(*args: ArrayLike) -> tuple[_Result, ...]:
    """Return a multi-dimensional grid (open mesh) from N one-dimensional sequences.

    `transform` of `jax.numpy.ix_`.
    """

def kaiser(M: int, beta: ArrayLike) -> _Result:
    """Return a Kaiser window of size M.

    `transform` of `jax.numpy.kaiser`.
    """

def kron(a: ArrayLike, b: ArrayLike) -> _Result:
    """Compute the Kronecker product of two input arrays.

    `transform` of `jax.numpy.kron`.
    """

def lcm(x1: ArrayLike, x2: ArrayLike) -> _Result:
    """Compute the least common multiple of two arrays.

    `transform` of `jax.numpy.lcm`.
    """

def ldexp(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Compute x1 * 2 ** x2

    `transform` of `jax.numpy.ldexp`.
    """

def left_shift(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Shift bits of ``x`` to left by the amount specified in ``y``, element-wise.

    `transform` of `jax.numpy.left_shift`.
    """

def less(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Return element-wise truth value of ``x < y``.

    `transform` of `jax.numpy.less`.
    """

def less_equal(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Return element-wise truth value of ``x <= y``.

    `transform` of `jax.numpy.less_equal`.
    """

def lexsort(
    keys: _Array | _np.ndarray[Any, Any] | Sequence[ArrayLike], axis: int | str = ...
) -> _Result:
    """Sort a sequence of keys in lexicographic order.

    `transform` of `jax.numpy.lexsort`.
    """

@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = ...,
    endpoint: builtins.bool = ...,
    retstep: Literal[False] = ...,
    dtype: DTypeLike | None = ...,
    axis: int | str = ...,
    *,
    device: _Device | _Sharding | None = ...,
) -> _Result:
    """Return evenly-spaced numbers within an interval.

    `transform` of `jax.numpy.linspace`.
    """

@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int,
    endpoint: builtins.bool,
    retstep: Literal[True],
    dtype: DTypeLike | None = ...,
    axis: int | str = ...,
    *,
    device: _Device | _Sharding | None = ...,
) -> tuple[_Result, _Result]: ...
@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = ...,
    endpoint: builtins.bool = ...,
    *,
    retstep: Literal[True],
    dtype: DTypeLike | None = ...,
    axis: int | str = ...,
    device: _Device | _Sharding | None = ...,
) -> tuple[_Result, _Result]: ...
@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = ...,
    endpoint: builtins.bool = ...,
    retstep: builtins.bool = ...,
    dtype: DTypeLike | None = ...,
    axis: int | str = ...,
    *,
    device: _Device | _Sharding | None = ...,
) -> Any: ...
def log(x: ArrayLike, /) -> _Result:
    """Calculate element-wise natural logarithm of the input.

    `transform` of `jax.numpy.log`.
    """

def log10(x: ArrayLike, /) -> _Result:
    """Calculates the base-10 logarithm of x element-wise

    `transform` of `jax.numpy.log10`.
    """

def log1p(x: ArrayLike, /) -> _Result:
    """Calculates element-wise logarithm of one plus input, ``log(x+1)``.

    `transform` of `jax.numpy.log1p`.
    """

def log2(x: ArrayLike, /) -> _Result:
    """Calculates the base-2 logarithm of ``x`` element-wise.

    `transform` of `jax.numpy.log2`.
    """

logaddexp: BinaryUfunc
"""Compute ``log(exp(x1) + exp(x2))`` avoiding overflow.

`transform` of `jax.numpy.logaddexp`.
"""
logaddexp2: BinaryUfunc
"""Logarithm of the sum of exponentials of inputs in base-2 avoiding overflow.

`transform` of `jax.numpy.logaddexp2`.
"""
logical_and: BinaryUfunc
"""Compute the logical AND operation elementwise.

`transform` of `jax.numpy.logical_and`.
"""

def logical_not(x: ArrayLike, /) -> _Result:
    """Compute NOT bool(x) element-wise.

    `transform` of `jax.numpy.logical_not`.
    """

logical_or: BinaryUfunc
"""Compute the logical OR operation elementwise.

`transform` of `jax.numpy.logical_or`.
"""
logical_xor: BinaryUfunc
"""Compute the logical XOR operation elementwise.

`transform` of `jax.numpy.logical_xor`.
"""

def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = ...,
    endpoint: builtins.bool = ...,
    base: ArrayLike = ...,
    dtype: DTypeLike | None = ...,
    axis: int | str = ...,
) -> _Result:
    """Generate logarithmically-spaced values.

    `transform` of `jax.numpy.logspace`.
    """

def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Perform a matrix multiplication.

    `transform` of `jax.numpy.matmul`.
    """

def matrix_transpose(x: ArrayLike, /) -> _Result:
    """Transpose the last two dimensions of an array.

    `transform` of `jax.numpy.matrix_transpose`.
    """

def matvec(x1: ArrayLike, x2: ArrayLike, /) -> _Result:
    """Batched matrix-vector product.

    `transform` of `jax.numpy.matvec`.
    """

def max(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Return the maximum of the array elements along a given axis.

    `transform` of `jax.numpy.max`.
    """

maximum: BinaryUfunc
"""Return element-wise maximum of the input arrays.

`transform` of `jax.numpy.maximum`.
"""

def mean(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    *,
    where: ArrayLike | None = ...,
) -> _Result:
    """Return the mean of array elements along a given axis.

    `transform` of `jax.numpy.mean`.
    """

def median(
    a: ArrayLike,
    axis: int | str | tuple[int | str, ...] | None = ...,
    out: None = ...,
    overwrite_input: builtins.bool = ...,
    keepdims: builtins.bool = ...,
) -> _Result:
    """Return the median of array elements along a given axis.

    `transform` of `jax.numpy.median`.
    """

def meshgrid(
    *xi: ArrayLike,
    copy: builtins.bool = ...,
    sparse: builtins.bool = ...,
    indexing: str = ...,
) -> list[_Result]:
    """Construct N-dimensional grid arrays from N 1-dimensional vectors.

    `transform` of `jax.numpy.meshgrid`.
    """

def min(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Return the minimum of array elements along a given axis.

    `transform` of `jax.numpy.min`.
    """

minimum: BinaryUfunc
"""Return element-wise minimum of the input arrays.

`transform` of `jax.numpy.minimum`.
"""

def mod(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.remainder`

    `transform` of `jax.numpy.mod`.
    """

def modf(x: ArrayLike, /, out: Any = ...) -> tuple[_Result, _Result]:
    """Return element-wise fractional and integral parts of the input array.

    `transform` of `jax.numpy.modf`.
    """

def moveaxis(
    a: ArrayLike, source: int | str | Sequence[int | str], destination: int | Sequence[int]
) -> _Result:
    """Move an array axis to a new position

    `transform` of `jax.numpy.moveaxis`.
    """

multiply: BinaryUfunc
"""Multiply two arrays element-wise.

`transform` of `jax.numpy.multiply`.
"""

def nan_to_num(
    x: ArrayLike,
    copy: builtins.bool = ...,
    nan: ArrayLike = ...,
    posinf: ArrayLike | None = ...,
    neginf: ArrayLike | None = ...,
) -> _Result:
    """Replace NaN and infinite entries in an array.

    `transform` of `jax.numpy.nan_to_num`.
    """

def nanargmax(
    a: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    keepdims: builtins.bool | None = ...,
) -> _Result:
    """Return the index of the maximum value of an array, ignoring NaNs.

    `transform` of `jax.numpy.nanargmax`.
    """

def nanargmin(
    a: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    keepdims: builtins.bool | None = ...,
) -> _Result:
    """Return the index of the minimum value of an array, ignoring NaNs.

    `transform` of `jax.numpy.nanargmin`.
    """

def nancumprod(
    a: ArrayLike,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> _Result:
    """Cumulative product of elements along an axis, ignoring NaN values.

    `transform` of `jax.numpy.nancumprod`.
    """

def nancumsum(
    a: ArrayLike,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> _Result:
    """Cumulative sum of elements along an axis, ignoring NaN values.

    `transform` of `jax.numpy.nancumsum`.
    """

def nanmax(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Return the maximum of the array elements along a given axis, ignoring NaNs.

    `transform` of `jax.numpy.nanmax`.
    """

def nanmean(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Return the mean of the array elements along a given axis, ignoring NaNs.

    `transform` of `jax.numpy.nanmean`.
    """

def nanmedian(
    a: ArrayLike,
    axis: int | str | tuple[int | str, ...] | None = ...,
    out: None = ...,
    overwrite_input: builtins.bool = ...,
    keepdims: builtins.bool = ...,
) -> _Result:
    """Return the median of array elements along a given axis, ignoring NaNs.

    `transform` of `jax.numpy.nanmedian`.
    """

def nanmin(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Return the minimum of the array elements along a given axis, ignoring NaNs.

    `transform` of `jax.numpy.nanmin`.
    """

def nanpercentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: int | str | tuple[int | str, ...] | None = ...,
    out: None = ...,
    overwrite_input: builtins.bool = ...,
    method: str = ...,
    keepdims: builtins.bool = ...,
    *,
    interpolation: Any | str = ...,
) -> _Result:
    """Compute the percentile of the data along the specified axis, ignoring NaN values.

    `transform` of `jax.numpy.nanpercentile`.
    """

def nanprod(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Return the product of the array elements along a given axis, ignoring NaNs.

    `transform` of `jax.numpy.nanprod`.
    """

def nanquantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: int | str | tuple[int | str, ...] | None = ...,
    out: None = ...,
    overwrite_input: builtins.bool = ...,
    method: str = ...,
    keepdims: builtins.bool = ...,
    *,
    interpolation: Any | str = ...,
) -> _Result:
    """Compute the quantile of the data along the specified axis, ignoring NaNs.

    `transform` of `jax.numpy.nanquantile`.
    """

def nanstd(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    ddof: int = ...,
    keepdims: builtins.bool = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Compute the standard deviation along a given axis, ignoring NaNs.

    `transform` of `jax.numpy.nanstd`.
    """

def nansum(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Return the sum of the array elements along a given axis, ignoring NaNs.

    `transform` of `jax.numpy.nansum`.
    """

def nanvar(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    ddof: int = ...,
    keepdims: builtins.bool = ...,
    where: ArrayLike | None = ...,
) -> _Result:
    """Compute the variance of array elements along a given axis, ignoring NaNs.

    `transform` of `jax.numpy.nanvar`.
    """

def ndim(a: ArrayLike | Any) -> int:
    """Return the number of dimensions of an array.

    `transform` of `jax.numpy.ndim`.
    """

def negative(x: ArrayLike, /) -> _Result:
    """Return element-wise negative values of the input.

    `transform` of `jax.numpy.negative`.
    """

def nextafter(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Return element-wise next floating point value after ``x`` towards ``y``.

    `transform` of `jax.numpy.nextafter`.
    """

def nonzero(
    a: ArrayLike,
    *,
    size: int | None = ...,
    fill_value: None | ArrayLike | tuple[ArrayLike, ...] = ...,
) -> tuple[_Result, ...]:
    """Return indices of nonzero elements of an array.

    `transform` of `jax.numpy.nonzero`.
    """

def not_equal(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Returns element-wise truth value of ``x != y``.

    `transform` of `jax.numpy.not_equal`.
    """

def ones_like(
    a: ArrayLike | Any,
    dtype: DTypeLike | None = ...,
    shape: Any = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Create an array of ones with the same shape and dtype as an array.

    `transform` of `jax.numpy.ones_like`.
    """

def outer(a: ArrayLike, b: _Array, out: None = ...) -> _Result:
    """Compute the outer product of two arrays.

    `transform` of `jax.numpy.outer`.
    """

def packbits(a: ArrayLike, axis: int | str | None = ..., bitorder: str = ...) -> _Result:
    """Pack array of bits into a uint8 array.

    `transform` of `jax.numpy.packbits`.
    """

def pad(
    array: ArrayLike, pad_width: Any, mode: str | Callable[..., Any] = ..., **kwargs: Any
) -> _Result:
    """Add padding to an array.

    `transform` of `jax.numpy.pad`.
    """

def partition(a: ArrayLike, kth: int, axis: int | str = ...) -> _Result:
    """Returns a partially-sorted copy of an array.

    `transform` of `jax.numpy.partition`.
    """

def percentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: int | str | tuple[int | str, ...] | None = ...,
    out: None = ...,
    overwrite_input: builtins.bool = ...,
    method: str = ...,
    keepdims: builtins.bool = ...,
    *,
    interpolation: Any | str = ...,
) -> _Result:
    """Compute the percentile of the data along the specified axis.

    `transform` of `jax.numpy.percentile`.
    """

def permute_dims(x: ArrayLike, /, axes: tuple[int | str, ...]) -> _Result:
    """Permute the axes/dimensions of an array.

    `transform` of `jax.numpy.permute_dims`.
    """

def piecewise(
    x: ArrayLike,
    condlist: _Array | Sequence[ArrayLike],
    funclist: Sequence[ArrayLike | Callable[..., _Array]],
    *args: Any,
    **kw: Any,
) -> _Result:
    """Evaluate a function defined piecewise across the domain.

    `transform` of `jax.numpy.piecewise`.
    """

def place(
    arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: builtins.bool = ...
) -> _Result:
    """Update array elements based on a mask.

    `transform` of `jax.numpy.place`.
    """

def poly(seq_of_zeros: ArrayLike) -> _Result:
    """Returns the coefficients of a polynomial for the given sequence of roots.

    `transform` of `jax.numpy.poly`.
    """

def polyadd(a1: ArrayLike, a2: ArrayLike) -> _Result:
    """Returns the sum of the two polynomials.

    `transform` of `jax.numpy.polyadd`.
    """

def polyder(p: ArrayLike, m: int = ...) -> _Result:
    """Returns the coefficients of the derivative of specified order of a polynomial.

    `transform` of `jax.numpy.polyder`.
    """

def polydiv(
    u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: builtins.bool = ...
) -> tuple[_Result, _Result]:
    """Returns the quotient and remainder of polynomial division.

    `transform` of `jax.numpy.polydiv`.
    """

def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = ...,
    full: builtins.bool = ...,
    w: ArrayLike | None = ...,
    cov: builtins.bool = ...,
) -> _Result | tuple[_Result, ...]:
    """Least squares polynomial fit to data.

    `transform` of `jax.numpy.polyfit`.
    """

def polyint(p: ArrayLike, m: int = ..., k: int | ArrayLike | None = ...) -> _Result:
    """Returns the coefficients of the integration of specified order of a polynomial.

    `transform` of `jax.numpy.polyint`.
    """

def polymul(
    a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: builtins.bool = ...
) -> _Result:
    """Returns the product of two polynomials.

    `transform` of `jax.numpy.polymul`.
    """

def polysub(a1: ArrayLike, a2: ArrayLike) -> _Result:
    """Returns the difference of two polynomials.

    `transform` of `jax.numpy.polysub`.
    """

def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int = ...) -> _Result:
    """Evaluates the polynomial at specific values.

    `transform` of `jax.numpy.polyval`.
    """

def positive(x: ArrayLike, /) -> _Result:
    """Return element-wise positive values of the input.

    `transform` of `jax.numpy.positive`.
    """

def pow(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.power`

    `transform` of `jax.numpy.pow`.
    """

def power(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Calculate element-wise base ``x1`` exponential of ``x2``.

    `transform` of `jax.numpy.power`.
    """

def prod(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
    promote_integers: builtins.bool = ...,
) -> _Result:
    """Return product of the array elements over a given axis.

    `transform` of `jax.numpy.prod`.
    """

def ptp(
    a: ArrayLike, axis: _Axis = ..., out: None = ..., keepdims: builtins.bool = ...
) -> _Result:
    """Return the peak-to-peak range along a given axis.

    `transform` of `jax.numpy.ptp`.
    """

def put(
    a: ArrayLike,
    ind: ArrayLike,
    v: ArrayLike,
    mode: str | None = ...,
    *,
    inplace: builtins.bool = ...,
) -> _Result:
    """Put elements into an array at given indices.

    `transform` of `jax.numpy.put`.
    """

def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | str | None,
    inplace: builtins.bool = ...,
    *,
    mode: str | None = ...,
) -> _Result:
    """Put values into the destination array by matching 1d index and data slices.

    `transform` of `jax.numpy.put_along_axis`.
    """

def quantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: int | str | tuple[int | str, ...] | None = ...,
    out: None = ...,
    overwrite_input: builtins.bool = ...,
    method: str = ...,
    keepdims: builtins.bool = ...,
    *,
    interpolation: Any | str = ...,
) -> _Result:
    """Compute the quantile of the data along the specified axis.

    `transform` of `jax.numpy.quantile`.
    """

def rad2deg(x: ArrayLike, /) -> _Result:
    """Convert angles from radians to degrees.

    `transform` of `jax.numpy.rad2deg`.
    """

def radians(x: ArrayLike, /) -> _Result:
    """Alias of :func:`jax.numpy.deg2rad`

    `transform` of `jax.numpy.radians`.
    """

def ravel(
    a: ArrayLike, order: str = ..., *, out_sharding: NamedSharding | P | None = ...
) -> _Result:
    """Flatten array into a 1-dimensional shape.

    `transform` of `jax.numpy.ravel`.
    """

def ravel_multi_index(
    multi_index: Sequence[ArrayLike], dims: Sequence[int], mode: str = ..., order: str = ...
) -> _Result:
    """Convert multi-dimensional indices into flat indices.

    `transform` of `jax.numpy.ravel_multi_index`.
    """

def real(x: ArrayLike, /) -> _Result:
    """Return element-wise real part of the complex argument.

    `transform` of `jax.numpy.real`.
    """

def reciprocal(x: ArrayLike, /) -> _Result:
    """Calculate element-wise reciprocal of the input.

    `transform` of `jax.numpy.reciprocal`.
    """

def remainder(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Returns element-wise remainder of the division.

    `transform` of `jax.numpy.remainder`.
    """

def repeat(
    a: ArrayLike,
    repeats: ArrayLike,
    axis: int | str | None = ...,
    *,
    total_repeat_length: int | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Construct an array from repeated elements.

    `transform` of `jax.numpy.repeat`.
    """

def reshape(
    a: ArrayLike,
    shape: Any,
    order: str = ...,
    *,
    copy: builtins.bool | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Return a reshaped copy of an array.

    `transform` of `jax.numpy.reshape`.
    """

def resize(a: ArrayLike, new_shape: Any) -> _Result:
    """Return a new array with specified shape.

    `transform` of `jax.numpy.resize`.
    """

def right_shift(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Right shift the bits of ``x1`` to the amount specified in ``x2``.

    `transform` of `jax.numpy.right_shift`.
    """

def rint(x: ArrayLike, /) -> _Result:
    """Rounds the elements of x to the nearest integer

    `transform` of `jax.numpy.rint`.
    """

def roll(
    a: ArrayLike,
    shift: ArrayLike | Sequence[int],
    axis: int | str | Sequence[int | str] | None = ...,
) -> _Result:
    """Roll the elements of an array along a specified axis.

    `transform` of `jax.numpy.roll`.
    """

def rollaxis(a: ArrayLike, axis: int | str, start: int = ...) -> _Result:
    """Roll the specified axis to a given position.

    `transform` of `jax.numpy.rollaxis`.
    """

def roots(p: ArrayLike, *, strip_zeros: builtins.bool = ...) -> _Result:
    """Returns the roots of a polynomial given the coefficients ``p``.

    `transform` of `jax.numpy.roots`.
    """

def rot90(m: ArrayLike, k: int = ..., axes: tuple[int | str, int | str] = ...) -> _Result:
    """Rotate an array by 90 degrees counterclockwise in the plane specified by axes.

    `transform` of `jax.numpy.rot90`.
    """

def round(a: ArrayLike, decimals: int = ..., out: None = ...) -> _Result:
    """Round input evenly to the given number of decimals.

    `transform` of `jax.numpy.round`.
    """

def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: str = ...,
    sorter: ArrayLike | None = ...,
    *,
    method: str = ...,
) -> _Result:
    """Perform a binary search within a sorted array.

    `transform` of `jax.numpy.searchsorted`.
    """

def select(
    condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = ...
) -> _Result:
    """Select values based on a series of conditions.

    `transform` of `jax.numpy.select`.
    """

def setdiff1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: builtins.bool = ...,
    *,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
) -> _Result:
    """Compute the set difference of two 1D arrays.

    `transform` of `jax.numpy.setdiff1d`.
    """

def setxor1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: builtins.bool = ...,
    *,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
) -> _Result:
    """Compute the set-wise xor of elements in two arrays.

    `transform` of `jax.numpy.setxor1d`.
    """

def shape(a: ArrayLike | Any) -> tuple[int, ...]:
    """Return the shape an array.

    `transform` of `jax.numpy.shape`.
    """

def sign(x: ArrayLike, /) -> _Result:
    """Return an element-wise indication of sign of the input.

    `transform` of `jax.numpy.sign`.
    """

def signbit(x: ArrayLike, /) -> _Result:
    """Return the sign bit of array elements.

    `transform` of `jax.numpy.signbit`.
    """

def sin(x: ArrayLike, /) -> _Result:
    """Compute a trigonometric sine of each element of input.

    `transform` of `jax.numpy.sin`.
    """

def sinc(x: ArrayLike, /) -> _Result:
    """Calculate the normalized sinc function.

    `transform` of `jax.numpy.sinc`.
    """

def sinh(x: ArrayLike, /) -> _Result:
    """Calculate element-wise hyperbolic sine of input.

    `transform` of `jax.numpy.sinh`.
    """

def size(a: ArrayLike | Any, axis: _Axis = ...) -> int:
    """Return number of elements along a given axis.

    `transform` of `jax.numpy.size`.
    """

def sort(
    a: ArrayLike,
    axis: int | str | None = ...,
    *,
    stable: builtins.bool = ...,
    descending: builtins.bool = ...,
    kind: str | None = ...,
    order: None = ...,
) -> _Result:
    """Return a sorted copy of an array.

    `transform` of `jax.numpy.sort`.
    """

def sort_complex(a: ArrayLike) -> _Result:
    """Return a sorted copy of complex array.

    `transform` of `jax.numpy.sort_complex`.
    """

def spacing(x: ArrayLike, /) -> _Result:
    """Return the spacing between ``x`` and the next adjacent number.

    `transform` of `jax.numpy.spacing`.
    """

def split(
    ary: ArrayLike,
    indices_or_sections: int | Sequence[int] | ArrayLike,
    axis: int | str = ...,
) -> list[_Result]:
    """Split an array into sub-arrays.

    `transform` of `jax.numpy.split`.
    """

def sqrt(x: ArrayLike, /) -> _Result:
    """Calculates element-wise non-negative square root of the input array.

    `transform` of `jax.numpy.sqrt`.
    """

def square(x: ArrayLike, /) -> _Result:
    """Calculate element-wise square of the input array.

    `transform` of `jax.numpy.square`.
    """

def squeeze(a: ArrayLike, axis: int | str | Sequence[int | str] | None = ...) -> _Result:
    """Remove one or more length-1 axes from array

    `transform` of `jax.numpy.squeeze`.
    """

def stack(
    arrays: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike],
    axis: int | str = ...,
    out: None = ...,
    dtype: DTypeLike | None = ...,
) -> _Result:
    """Join arrays along a new axis.

    `transform` of `jax.numpy.stack`.
    """

def std(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    ddof: int = ...,
    keepdims: builtins.bool = ...,
    *,
    where: ArrayLike | None = ...,
    correction: int | float | None = ...,
) -> _Result:
    """Compute the standard deviation along a given axis.

    `transform` of `jax.numpy.std`.
    """

subtract: BinaryUfunc
"""Subtract two arrays element-wise.

`transform` of `jax.numpy.subtract`.
"""

def sum(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
    promote_integers: builtins.bool = ...,
) -> _Result:
    """Sum of the elements of the array over a given axis.

    `transform` of `jax.numpy.sum`.
    """

def swapaxes(a: ArrayLike, axis1: int | str, axis2: int | str) -> _Result:
    """Swap two axes of an array.

    `transform` of `jax.numpy.swapaxes`.
    """

def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    mode: str | None = ...,
    unique_indices: builtins.bool = ...,
    indices_are_sorted: builtins.bool = ...,
    fill_value: Any | None = ...,
) -> _Result:
    """Take elements from an array.

    `transform` of `jax.numpy.take`.
    """

def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | str | None = ...,
    mode: str | Any | None = ...,
    fill_value: Any | None = ...,
    *,
    wrap_negative_indices: builtins.bool = ...,
) -> _Result:
    """Take elements from an array.

    `transform` of `jax.numpy.take_along_axis`.
    """

def tan(x: ArrayLike, /) -> _Result:
    """Compute a trigonometric tangent of each element of input.

    `transform` of `jax.numpy.tan`.
    """

def tanh(x: ArrayLike, /) -> _Result:
    """Calculate element-wise hyperbolic tangent of input.

    `transform` of `jax.numpy.tanh`.
    """

def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[int] | Sequence[Sequence[int]] = ...,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Compute the tensor dot product of two N-dimensional arrays.

    `transform` of `jax.numpy.tensordot`.
    """

def tile(A: ArrayLike, reps: Any | Sequence[Any]) -> _Result:
    """Construct an array by repeating ``A`` along specified dimensions.

    `transform` of `jax.numpy.tile`.
    """

def trace(
    a: ArrayLike,
    offset: int | ArrayLike = ...,
    axis1: int | str = ...,
    axis2: int | str = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> _Result:
    """Calculate sum of the diagonal of input along the given axes.

    `transform` of `jax.numpy.trace`.
    """

def transpose(a: ArrayLike, axes: Sequence[int | str] | None = ...) -> _Result:
    """Return a transposed version of an N-dimensional array.

    `transform` of `jax.numpy.transpose`.
    """

def trapezoid(
    y: ArrayLike, x: ArrayLike | None = ..., dx: ArrayLike = ..., axis: int | str = ...
) -> _Result:
    """Integrate along the given axis using the composite trapezoidal rule.

    `transform` of `jax.numpy.trapezoid`.
    """

def tril(m: ArrayLike, k: int = ...) -> _Result:
    """Return lower triangle of an array.

    `transform` of `jax.numpy.tril`.
    """

def tril_indices_from(arr: ArrayLike | Any, k: int = ...) -> tuple[_Result, _Result]:
    """Return the indices of lower triangle of a given array.

    `transform` of `jax.numpy.tril_indices_from`.
    """

def fill_diagonal(
    a: ArrayLike, val: ArrayLike, wrap: builtins.bool = ..., *, inplace: builtins.bool = ...
) -> _Result:
    """Return a copy of the array with the diagonal overwritten.

    `transform` of `jax.numpy.fill_diagonal`.
    """

def trim_zeros(
    filt: ArrayLike, trim: str = ..., axis: int | str | Sequence[int | str] | None = ...
) -> _Result:
    """Trim leading and/or trailing zeros of the input array.

    `transform` of `jax.numpy.trim_zeros`.
    """

def triu(m: ArrayLike, k: int = ...) -> _Result:
    """Return upper triangle of an array.

    `transform` of `jax.numpy.triu`.
    """

def triu_indices_from(arr: ArrayLike | Any, k: int = ...) -> tuple[_Result, _Result]:
    """Return the indices of upper triangle of a given array.

    `transform` of `jax.numpy.triu_indices_from`.
    """

def true_divide(x: ArrayLike, y: ArrayLike, /) -> _Result:
    """Calculates the division of x1 by x2 element-wise

    `transform` of `jax.numpy.true_divide`.
    """

def trunc(x: ArrayLike, /) -> _Result:
    """Round input to the nearest integer towards zero.

    `transform` of `jax.numpy.trunc`.
    """

def union1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    *,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
) -> _Result:
    """Compute the set union of two 1D arrays.

    `transform` of `jax.numpy.union1d`.
    """

def unique(
    ar: ArrayLike,
    return_index: builtins.bool = ...,
    return_inverse: builtins.bool = ...,
    return_counts: builtins.bool = ...,
    axis: int | str | None = ...,
    *,
    equal_nan: builtins.bool = ...,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
    sorted: builtins.bool = ...,
) -> Any:
    """Return the unique values from an array.

    `transform` of `jax.numpy.unique`.
    """

def unique_all(
    x: ArrayLike, /, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> Any:
    """Return unique values from x, along with indices, inverse indices, and counts.

    `transform` of `jax.numpy.unique_all`.
    """

def unique_counts(
    x: ArrayLike, /, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> Any:
    """Return unique values from x, along with counts.

    `transform` of `jax.numpy.unique_counts`.
    """

def unique_inverse(
    x: ArrayLike, /, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> Any:
    """Return unique values from x, along with indices, inverse indices, and counts.

    `transform` of `jax.numpy.unique_inverse`.
    """

def unique_values(
    x: ArrayLike, /, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> _Result:
    """Return unique values from x, along with indices, inverse indices, and counts.

    `transform` of `jax.numpy.unique_values`.
    """

def unpackbits(
    a: ArrayLike,
    axis: int | str | None = ...,
    count: ArrayLike | None = ...,
    bitorder: str = ...,
) -> _Result:
    """Unpack the bits in a uint8 array.

    `transform` of `jax.numpy.unpackbits`.
    """

def unravel_index(indices: ArrayLike, shape: Any) -> tuple[_Result, ...]:
    """Convert flat indices into multi-dimensional indices.

    `transform` of `jax.numpy.unravel_index`.
    """

def unstack(x: ArrayLike, /, *, axis: int | str = ...) -> tuple[_Result, ...]:
    """Unstack an array along an axis.

    `transform` of `jax.numpy.unstack`.
    """

def unwrap(
    p: ArrayLike,
    discont: ArrayLike | None = ...,
    axis: int | str = ...,
    period: ArrayLike = ...,
) -> _Result:
    """Unwrap a periodic signal.

    `transform` of `jax.numpy.unwrap`.
    """

def vander(x: ArrayLike, N: int | None = ..., increasing: builtins.bool = ...) -> _Result:
    """Generate a Vandermonde matrix.

    `transform` of `jax.numpy.vander`.
    """

def var(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    ddof: int = ...,
    keepdims: builtins.bool = ...,
    *,
    where: ArrayLike | None = ...,
    correction: int | float | None = ...,
) -> _Result:
    """Compute the variance along a given axis.

    `transform` of `jax.numpy.var`.
    """

def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> _Result:
    """Perform a conjugate multiplication of two 1D vectors.

    `transform` of `jax.numpy.vdot`.
    """

def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int | str = ...,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> _Result:
    """Perform a conjugate multiplication of two batched vectors.

    `transform` of `jax.numpy.vecdot`.
    """

def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> _Result:
    """Batched conjugate vector-matrix product.

    `transform` of `jax.numpy.vecmat`.
    """

def vsplit(ary: ArrayLike, indices_or_sections: int | ArrayLike) -> list[_Result]:
    """Split an array into sub-arrays vertically.

    `transform` of `jax.numpy.vsplit`.
    """

def vstack(
    tup: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike], dtype: DTypeLike | None = ...
) -> _Result:
    """Vertically stack arrays.

    `transform` of `jax.numpy.vstack`.
    """

@overload
def where(
    condition: ArrayLike,
    /,
    *,
    size: int | None = ...,
    fill_value: None | ArrayLike | tuple[ArrayLike, ...] = ...,
) -> tuple[_Result, ...]:
    """Select elements from two arrays based on a condition.

    `transform` of `jax.numpy.where`.
    """

@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /) -> _Result: ...
def zeros_like(
    a: ArrayLike | Any,
    dtype: DTypeLike | None = ...,
    shape: Any = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> _Result:
    """Create an array full of zeros with the same shape and dtype as an array.

    `transform` of `jax.numpy.zeros_like`.
    """

def __getattr__(name: str) -> Any: ...
