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
    def __call__(self, x: ArrayLike, y: ArrayLike, /) -> Any: ...
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
    ) -> Any: ...
    def accumulate(
        self,
        a: ArrayLike,
        /,
        *,
        axis: int | str = ...,
        dtype: DTypeLike | None = ...,
        out: None = ...,
    ) -> Any: ...
    def at(
        self,
        a: ArrayLike,
        indices: Any,
        b: ArrayLike | None = ...,
        /,
        *,
        inplace: builtins.bool = ...,
    ) -> Any: ...
    def reduceat(
        self,
        a: ArrayLike,
        indices: Any,
        *,
        axis: int | str = ...,
        dtype: DTypeLike | None = ...,
        out: None = ...,
    ) -> Any: ...
    def outer(self, a: ArrayLike, b: ArrayLike, /) -> Any: ...

def abs(x: ArrayLike, /) -> Any: ...
def absolute(x: ArrayLike, /) -> Any: ...
def acos(x: ArrayLike, /) -> Any: ...
def acosh(x: ArrayLike, /) -> Any: ...

add: BinaryUfunc

def amax(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
def amin(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
def all(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    *,
    where: ArrayLike | None = ...,
) -> Any: ...
def allclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = ...,
    atol: ArrayLike = ...,
    equal_nan: builtins.bool = ...,
) -> Any: ...
def angle(z: ArrayLike, deg: builtins.bool = ...) -> Any: ...
def any(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    *,
    where: ArrayLike | None = ...,
) -> Any: ...
def append(arr: ArrayLike, values: ArrayLike, axis: int | str | None = ...) -> Any: ...
def apply_along_axis(
    func1d: Callable[..., Any], axis: int | str, arr: ArrayLike, *args: Any, **kwargs: Any
) -> Any: ...
def apply_over_axes(
    func: Callable[..., Any], a: ArrayLike, axes: Sequence[int | str]
) -> Any: ...
def arange(
    start: ArrayLike | Any,
    stop: ArrayLike | Any | None = ...,
    step: ArrayLike | None = ...,
    dtype: DTypeLike | None = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def arccos(x: ArrayLike, /) -> Any: ...
def arccosh(x: ArrayLike, /) -> Any: ...
def arcsin(x: ArrayLike, /) -> Any: ...
def arcsinh(x: ArrayLike, /) -> Any: ...
def arctan(x: ArrayLike, /) -> Any: ...
def arctan2(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def arctanh(x: ArrayLike, /) -> Any: ...
def argmax(
    a: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    keepdims: builtins.bool | None = ...,
) -> Any: ...
def argmin(
    a: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    keepdims: builtins.bool | None = ...,
) -> Any: ...
def argpartition(a: ArrayLike, kth: int, axis: int | str = ...) -> Any: ...
def argsort(
    a: ArrayLike,
    axis: int | str | None = ...,
    *,
    stable: builtins.bool = ...,
    descending: builtins.bool = ...,
    kind: str | None = ...,
    order: None = ...,
    dtype: DTypeLike | None = ...,
) -> Any: ...
def argwhere(
    a: ArrayLike, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> Any: ...
def around(a: ArrayLike, decimals: int = ..., out: None = ...) -> Any: ...
def array(
    object: Any,
    dtype: DTypeLike | None = ...,
    copy: builtins.bool = ...,
    order: str | None = ...,
    ndmin: int = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: builtins.bool = ...) -> Any: ...
def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Any: ...
def array_split(
    ary: ArrayLike,
    indices_or_sections: int | Sequence[int] | ArrayLike,
    axis: int | str = ...,
) -> list[Any]: ...
def asarray(
    a: Any,
    dtype: DTypeLike | None = ...,
    order: str | None = ...,
    *,
    copy: builtins.bool | None = ...,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def asin(x: ArrayLike, /) -> Any: ...
def asinh(x: ArrayLike, /) -> Any: ...
def astype(
    a: ArrayLike,
    dtype: DTypeLike | None,
    /,
    *,
    copy: builtins.bool = ...,
    device: _Device | _Sharding | None = ...,
) -> Any: ...
def atan(x: ArrayLike, /) -> Any: ...
def atan2(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def atanh(x: ArrayLike, /) -> Any: ...
@overload
def atleast_1d() -> list[Any]: ...
@overload
def atleast_1d(x: ArrayLike, /) -> Any: ...
@overload
def atleast_1d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike) -> list[Any]: ...
@overload
def atleast_2d() -> list[Any]: ...
@overload
def atleast_2d(x: ArrayLike, /) -> Any: ...
@overload
def atleast_2d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike) -> list[Any]: ...
@overload
def atleast_3d() -> list[Any]: ...
@overload
def atleast_3d(x: ArrayLike, /) -> Any: ...
@overload
def atleast_3d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike) -> list[Any]: ...
@overload
def average(
    a: ArrayLike,
    axis: _Axis = ...,
    weights: ArrayLike | None = ...,
    returned: Literal[False] = ...,
    keepdims: builtins.bool = ...,
) -> Any: ...
@overload
def average(
    a: ArrayLike,
    axis: _Axis = ...,
    weights: ArrayLike | None = ...,
    *,
    returned: Literal[True],
    keepdims: builtins.bool = ...,
) -> tuple[Any, Any]: ...
@overload
def average(
    a: ArrayLike,
    axis: _Axis = ...,
    weights: ArrayLike | None = ...,
    returned: builtins.bool = ...,
    keepdims: builtins.bool = ...,
) -> Any | tuple[Any, Any]: ...
def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = ...,
    minlength: int = ...,
    *,
    length: int | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...

bitwise_and: BinaryUfunc

def bitwise_count(x: ArrayLike, /) -> Any: ...
def bitwise_invert(x: ArrayLike, /) -> Any: ...
def bitwise_left_shift(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def bitwise_not(x: ArrayLike, /) -> Any: ...

bitwise_or: BinaryUfunc

def bitwise_right_shift(x: ArrayLike, y: ArrayLike, /) -> Any: ...

bitwise_xor: BinaryUfunc

def block(
    arrays: ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]],
) -> Any: ...
def broadcast_arrays(*args: ArrayLike) -> list[Any]: ...
def broadcast_to(
    array: ArrayLike, shape: Any, *, out_sharding: NamedSharding | P | None = ...
) -> Any: ...
def cbrt(x: ArrayLike, /) -> Any: ...
def ceil(x: ArrayLike, /) -> Any: ...
def choose(
    a: ArrayLike,
    choices: _Array | _np.ndarray[Any, Any] | Sequence[ArrayLike],
    out: None = ...,
    mode: str = ...,
) -> Any: ...
def clip(
    x: ArrayLike | None = ...,
    /,
    min: ArrayLike | None = ...,
    max: ArrayLike | None = ...,
    *,
    a: ArrayLike | Any | None = ...,
    a_min: ArrayLike | Any | None = ...,
    a_max: ArrayLike | Any | None = ...,
) -> Any: ...
def column_stack(tup: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike]) -> Any: ...
def compress(
    condition: ArrayLike,
    a: ArrayLike,
    axis: int | str | None = ...,
    *,
    size: int | None = ...,
    fill_value: ArrayLike = ...,
    out: None = ...,
) -> Any: ...
def concat(arrays: Sequence[ArrayLike], /, *, axis: int | str | None = ...) -> Any: ...
def concatenate(
    arrays: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike],
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
) -> Any: ...
def conjugate(x: ArrayLike, /) -> Any: ...
def conj(x: ArrayLike, /) -> Any: ...
def convolve(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = ...,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> Any: ...
def copy(a: ArrayLike, order: str | None = ...) -> Any: ...
def copysign(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def corrcoef(
    x: ArrayLike,
    y: ArrayLike | None = ...,
    rowvar: builtins.bool = ...,
    dtype: DTypeLike | None = ...,
) -> Any: ...
def correlate(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = ...,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> Any: ...
def cos(x: ArrayLike, /) -> Any: ...
def cosh(x: ArrayLike, /) -> Any: ...
def count_nonzero(
    a: ArrayLike, axis: _Axis = ..., keepdims: builtins.bool = ...
) -> Any: ...
def cov(
    m: ArrayLike,
    y: ArrayLike | None = ...,
    rowvar: builtins.bool = ...,
    bias: builtins.bool = ...,
    ddof: int | None = ...,
    fweights: ArrayLike | None = ...,
    aweights: ArrayLike | None = ...,
    dtype: DTypeLike | None = ...,
) -> Any: ...
def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = ...,
    axisb: int = ...,
    axisc: int = ...,
    axis: int | str | None = ...,
) -> Any: ...
def cumprod(
    a: ArrayLike,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> Any: ...
def cumsum(
    a: ArrayLike,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> Any: ...
def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    include_initial: builtins.bool = ...,
) -> Any: ...
def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    include_initial: builtins.bool = ...,
) -> Any: ...
def deg2rad(x: ArrayLike, /) -> Any: ...
def degrees(x: ArrayLike, /) -> Any: ...
def delete(
    arr: ArrayLike,
    obj: ArrayLike | slice,
    axis: int | str | None = ...,
    *,
    assume_unique_indices: builtins.bool = ...,
) -> Any: ...
def diag(v: ArrayLike, k: int = ...) -> Any: ...
def diag_indices_from(arr: ArrayLike) -> tuple[Any, ...]: ...
def diagflat(v: ArrayLike, k: int = ...) -> Any: ...
def diagonal(
    a: ArrayLike, offset: ArrayLike = ..., axis1: int | str = ..., axis2: int | str = ...
) -> Any: ...
def diff(
    a: ArrayLike,
    n: int = ...,
    axis: int | str = ...,
    prepend: ArrayLike | None = ...,
    append: ArrayLike | None = ...,
) -> Any: ...
def digitize(
    x: ArrayLike, bins: ArrayLike, right: builtins.bool = ..., *, method: str | None = ...
) -> Any: ...
def divide(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def divmod(x: ArrayLike, y: ArrayLike, /) -> tuple[Any, Any]: ...
def dot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def dsplit(ary: ArrayLike, indices_or_sections: int | ArrayLike) -> list[Any]: ...
def dstack(
    tup: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike], dtype: DTypeLike | None = ...
) -> Any: ...
def ediff1d(
    ary: ArrayLike, to_end: ArrayLike | None = ..., to_begin: ArrayLike | None = ...
) -> Any: ...
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
) -> Any: ...
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
) -> Any: ...
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
) -> Any: ...
@overload
def einsum_path(
    subscripts: str,
    /,
    *operands: ArrayLike,
    optimize: str | builtins.bool | list[tuple[int, ...]] = ...,
) -> tuple[list[tuple[int, ...]], Any]: ...
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
) -> Any: ...
def equal(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def exp(x: ArrayLike, /) -> Any: ...
def exp2(x: ArrayLike, /) -> Any: ...
def expand_dims(a: ArrayLike, axis: int | str | Sequence[int | str]) -> Any: ...
def expm1(x: ArrayLike, /) -> Any: ...
def extract(
    condition: ArrayLike,
    arr: ArrayLike,
    *,
    size: int | None = ...,
    fill_value: ArrayLike = ...,
) -> Any: ...
def eye(
    N: Any,
    M: Any | None = ...,
    k: int | ArrayLike = ...,
    dtype: DTypeLike | None = ...,
    *,
    device: _Device | _Sharding | None = ...,
) -> Any: ...
def fabs(x: ArrayLike, /) -> Any: ...
def flatnonzero(
    a: ArrayLike,
    *,
    size: int | None = ...,
    fill_value: None | ArrayLike | tuple[ArrayLike] = ...,
) -> Any: ...
def flip(m: ArrayLike, axis: int | str | Sequence[int | str] | None = ...) -> Any: ...
def fliplr(m: ArrayLike) -> Any: ...
def flipud(m: ArrayLike) -> Any: ...
def float_power(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def floor(x: ArrayLike, /) -> Any: ...
def floor_divide(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def fmax(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def fmin(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def fmod(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def frexp(x: ArrayLike, /) -> tuple[Any, Any]: ...
def fromfunction(
    function: Callable[..., _Array], shape: Any, *, dtype: DTypeLike = ..., **kwargs: Any
) -> Any: ...
def full(
    shape: Any,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def full_like(
    a: ArrayLike | Any,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = ...,
    shape: Any = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def gcd(x1: ArrayLike, x2: ArrayLike) -> Any: ...
def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = ...,
    endpoint: builtins.bool = ...,
    dtype: DTypeLike | None = ...,
    axis: int | str = ...,
) -> Any: ...
def gradient(
    f: ArrayLike,
    *varargs: ArrayLike,
    axis: int | str | Sequence[int | str] | None = ...,
    edge_order: int | None = ...,
) -> Any | list[Any]: ...
def greater(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def greater_equal(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def heaviside(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def histogram(
    a: ArrayLike,
    bins: ArrayLike = ...,
    range: Sequence[ArrayLike] | None = ...,
    weights: ArrayLike | None = ...,
    density: builtins.bool | None = ...,
) -> tuple[Any, Any]: ...
def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = ...,
    range: Sequence[None | _Array | Sequence[ArrayLike]] | None = ...,
    weights: ArrayLike | None = ...,
    density: builtins.bool | None = ...,
) -> tuple[Any, Any, Any]: ...
def histogram_bin_edges(
    a: ArrayLike,
    bins: ArrayLike = ...,
    range: None | _Array | Sequence[ArrayLike] = ...,
    weights: ArrayLike | None = ...,
) -> Any: ...
def histogramdd(
    sample: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = ...,
    range: Sequence[None | _Array | Sequence[ArrayLike]] | None = ...,
    weights: ArrayLike | None = ...,
    density: builtins.bool | None = ...,
) -> tuple[Any, list[Any]]: ...
def hsplit(ary: ArrayLike, indices_or_sections: int | ArrayLike) -> list[Any]: ...
def hstack(
    tup: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike], dtype: DTypeLike | None = ...
) -> Any: ...
def hypot(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def i0(x: ArrayLike) -> Any: ...
def imag(x: ArrayLike, /) -> Any: ...
def inner(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> Any: ...
def insert(
    arr: ArrayLike, obj: ArrayLike | slice, values: ArrayLike, axis: int | str | None = ...
) -> Any: ...
def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | str | None = ...,
    right: ArrayLike | str | None = ...,
    period: ArrayLike | None = ...,
) -> Any: ...
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: builtins.bool = ...,
    return_indices: builtins.bool = ...,
    *,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
) -> Any | tuple[Any, Any, Any]: ...
def invert(x: ArrayLike, /) -> Any: ...
def isclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = ...,
    atol: ArrayLike = ...,
    equal_nan: builtins.bool = ...,
) -> Any: ...
def iscomplex(x: ArrayLike) -> Any: ...
def isfinite(x: ArrayLike, /) -> Any: ...
def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: builtins.bool = ...,
    invert: builtins.bool = ...,
    *,
    method: str = ...,
) -> Any: ...
def isinf(x: ArrayLike, /) -> Any: ...
def isnan(x: ArrayLike, /) -> Any: ...
def isneginf(x: ArrayLike, /) -> Any: ...
def isposinf(x: ArrayLike, /) -> Any: ...
def isreal(x: ArrayLike) -> Any: ...
def ix_(*args: ArrayLike) -> tuple[Any, ...]: ...
def kaiser(M: int, beta: ArrayLike) -> Any: ...
def kron(a: ArrayLike, b: ArrayLike) -> Any: ...
def lcm(x1: ArrayLike, x2: ArrayLike) -> Any: ...
def ldexp(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def left_shift(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def less(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def less_equal(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def lexsort(
    keys: _Array | _np.ndarray[Any, Any] | Sequence[ArrayLike], axis: int | str = ...
) -> Any: ...
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
) -> Any: ...
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
) -> tuple[Any, Any]: ...
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
) -> tuple[Any, Any]: ...
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
def log(x: ArrayLike, /) -> Any: ...
def log10(x: ArrayLike, /) -> Any: ...
def log1p(x: ArrayLike, /) -> Any: ...
def log2(x: ArrayLike, /) -> Any: ...

logaddexp: BinaryUfunc
logaddexp2: BinaryUfunc
logical_and: BinaryUfunc

def logical_not(x: ArrayLike, /) -> Any: ...

logical_or: BinaryUfunc
logical_xor: BinaryUfunc

def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = ...,
    endpoint: builtins.bool = ...,
    base: ArrayLike = ...,
    dtype: DTypeLike | None = ...,
    axis: int | str = ...,
) -> Any: ...
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def matrix_transpose(x: ArrayLike, /) -> Any: ...
def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Any: ...
def max(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> Any: ...

maximum: BinaryUfunc

def mean(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    *,
    where: ArrayLike | None = ...,
) -> Any: ...
def median(
    a: ArrayLike,
    axis: int | str | tuple[int | str, ...] | None = ...,
    out: None = ...,
    overwrite_input: builtins.bool = ...,
    keepdims: builtins.bool = ...,
) -> Any: ...
def meshgrid(
    *xi: ArrayLike,
    copy: builtins.bool = ...,
    sparse: builtins.bool = ...,
    indexing: str = ...,
) -> list[Any]: ...
def min(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> Any: ...

minimum: BinaryUfunc

def mod(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def modf(x: ArrayLike, /, out: Any = ...) -> tuple[Any, Any]: ...
def moveaxis(
    a: ArrayLike, source: int | str | Sequence[int | str], destination: int | Sequence[int]
) -> Any: ...

multiply: BinaryUfunc

def nan_to_num(
    x: ArrayLike,
    copy: builtins.bool = ...,
    nan: ArrayLike = ...,
    posinf: ArrayLike | None = ...,
    neginf: ArrayLike | None = ...,
) -> Any: ...
def nanargmax(
    a: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    keepdims: builtins.bool | None = ...,
) -> Any: ...
def nanargmin(
    a: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    keepdims: builtins.bool | None = ...,
) -> Any: ...
def nancumprod(
    a: ArrayLike,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> Any: ...
def nancumsum(
    a: ArrayLike,
    axis: int | str | None = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> Any: ...
def nanmax(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
def nanmean(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
def nanmedian(
    a: ArrayLike,
    axis: int | str | tuple[int | str, ...] | None = ...,
    out: None = ...,
    overwrite_input: builtins.bool = ...,
    keepdims: builtins.bool = ...,
) -> Any: ...
def nanmin(
    a: ArrayLike,
    axis: _Axis = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
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
) -> Any: ...
def nanprod(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
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
) -> Any: ...
def nanstd(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    ddof: int = ...,
    keepdims: builtins.bool = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
def nansum(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
def nanvar(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    ddof: int = ...,
    keepdims: builtins.bool = ...,
    where: ArrayLike | None = ...,
) -> Any: ...
def ndim(a: ArrayLike | Any) -> int: ...
def negative(x: ArrayLike, /) -> Any: ...
def nextafter(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def nonzero(
    a: ArrayLike,
    *,
    size: int | None = ...,
    fill_value: None | ArrayLike | tuple[ArrayLike, ...] = ...,
) -> tuple[Any, ...]: ...
def not_equal(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def ones_like(
    a: ArrayLike | Any,
    dtype: DTypeLike | None = ...,
    shape: Any = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def outer(a: ArrayLike, b: _Array, out: None = ...) -> Any: ...
def packbits(a: ArrayLike, axis: int | str | None = ..., bitorder: str = ...) -> Any: ...
def pad(
    array: ArrayLike, pad_width: Any, mode: str | Callable[..., Any] = ..., **kwargs: Any
) -> Any: ...
def partition(a: ArrayLike, kth: int, axis: int | str = ...) -> Any: ...
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
) -> Any: ...
def permute_dims(x: ArrayLike, /, axes: tuple[int | str, ...]) -> Any: ...
def piecewise(
    x: ArrayLike,
    condlist: _Array | Sequence[ArrayLike],
    funclist: Sequence[ArrayLike | Callable[..., _Array]],
    *args: Any,
    **kw: Any,
) -> Any: ...
def place(
    arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: builtins.bool = ...
) -> Any: ...
def poly(seq_of_zeros: ArrayLike) -> Any: ...
def polyadd(a1: ArrayLike, a2: ArrayLike) -> Any: ...
def polyder(p: ArrayLike, m: int = ...) -> Any: ...
def polydiv(
    u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: builtins.bool = ...
) -> tuple[Any, Any]: ...
def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = ...,
    full: builtins.bool = ...,
    w: ArrayLike | None = ...,
    cov: builtins.bool = ...,
) -> Any | tuple[Any, ...]: ...
def polyint(p: ArrayLike, m: int = ..., k: int | ArrayLike | None = ...) -> Any: ...
def polymul(
    a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: builtins.bool = ...
) -> Any: ...
def polysub(a1: ArrayLike, a2: ArrayLike) -> Any: ...
def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int = ...) -> Any: ...
def positive(x: ArrayLike, /) -> Any: ...
def pow(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def power(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def prod(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
    promote_integers: builtins.bool = ...,
) -> Any: ...
def ptp(
    a: ArrayLike, axis: _Axis = ..., out: None = ..., keepdims: builtins.bool = ...
) -> Any: ...
def put(
    a: ArrayLike,
    ind: ArrayLike,
    v: ArrayLike,
    mode: str | None = ...,
    *,
    inplace: builtins.bool = ...,
) -> Any: ...
def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | str | None,
    inplace: builtins.bool = ...,
    *,
    mode: str | None = ...,
) -> Any: ...
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
) -> Any: ...
def rad2deg(x: ArrayLike, /) -> Any: ...
def radians(x: ArrayLike, /) -> Any: ...
def ravel(
    a: ArrayLike, order: str = ..., *, out_sharding: NamedSharding | P | None = ...
) -> Any: ...
def ravel_multi_index(
    multi_index: Sequence[ArrayLike], dims: Sequence[int], mode: str = ..., order: str = ...
) -> Any: ...
def real(x: ArrayLike, /) -> Any: ...
def reciprocal(x: ArrayLike, /) -> Any: ...
def remainder(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def repeat(
    a: ArrayLike,
    repeats: ArrayLike,
    axis: int | str | None = ...,
    *,
    total_repeat_length: int | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def reshape(
    a: ArrayLike,
    shape: Any,
    order: str = ...,
    *,
    copy: builtins.bool | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def resize(a: ArrayLike, new_shape: Any) -> Any: ...
def right_shift(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def rint(x: ArrayLike, /) -> Any: ...
def roll(
    a: ArrayLike,
    shift: ArrayLike | Sequence[int],
    axis: int | str | Sequence[int | str] | None = ...,
) -> Any: ...
def rollaxis(a: ArrayLike, axis: int | str, start: int = ...) -> Any: ...
def roots(p: ArrayLike, *, strip_zeros: builtins.bool = ...) -> Any: ...
def rot90(m: ArrayLike, k: int = ..., axes: tuple[int | str, int | str] = ...) -> Any: ...
def round(a: ArrayLike, decimals: int = ..., out: None = ...) -> Any: ...
def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: str = ...,
    sorter: ArrayLike | None = ...,
    *,
    method: str = ...,
) -> Any: ...
def select(
    condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = ...
) -> Any: ...
def setdiff1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: builtins.bool = ...,
    *,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
) -> Any: ...
def setxor1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: builtins.bool = ...,
    *,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
) -> Any: ...
def shape(a: ArrayLike | Any) -> tuple[int, ...]: ...
def sign(x: ArrayLike, /) -> Any: ...
def signbit(x: ArrayLike, /) -> Any: ...
def sin(x: ArrayLike, /) -> Any: ...
def sinc(x: ArrayLike, /) -> Any: ...
def sinh(x: ArrayLike, /) -> Any: ...
def size(a: ArrayLike | Any, axis: _Axis = ...) -> int: ...
def sort(
    a: ArrayLike,
    axis: int | str | None = ...,
    *,
    stable: builtins.bool = ...,
    descending: builtins.bool = ...,
    kind: str | None = ...,
    order: None = ...,
) -> Any: ...
def sort_complex(a: ArrayLike) -> Any: ...
def spacing(x: ArrayLike, /) -> Any: ...
def split(
    ary: ArrayLike,
    indices_or_sections: int | Sequence[int] | ArrayLike,
    axis: int | str = ...,
) -> list[Any]: ...
def sqrt(x: ArrayLike, /) -> Any: ...
def square(x: ArrayLike, /) -> Any: ...
def squeeze(a: ArrayLike, axis: int | str | Sequence[int | str] | None = ...) -> Any: ...
def stack(
    arrays: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike],
    axis: int | str = ...,
    out: None = ...,
    dtype: DTypeLike | None = ...,
) -> Any: ...
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
) -> Any: ...

subtract: BinaryUfunc

def sum(
    a: ArrayLike,
    axis: _Axis = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
    keepdims: builtins.bool = ...,
    initial: ArrayLike | None = ...,
    where: ArrayLike | None = ...,
    promote_integers: builtins.bool = ...,
) -> Any: ...
def swapaxes(a: ArrayLike, axis1: int | str, axis2: int | str) -> Any: ...
def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | str | None = ...,
    out: None = ...,
    mode: str | None = ...,
    unique_indices: builtins.bool = ...,
    indices_are_sorted: builtins.bool = ...,
    fill_value: Any | None = ...,
) -> Any: ...
def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | str | None = ...,
    mode: str | Any | None = ...,
    fill_value: Any | None = ...,
    *,
    wrap_negative_indices: builtins.bool = ...,
) -> Any: ...
def tan(x: ArrayLike, /) -> Any: ...
def tanh(x: ArrayLike, /) -> Any: ...
def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[int] | Sequence[Sequence[int]] = ...,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def tile(A: ArrayLike, reps: Any | Sequence[Any]) -> Any: ...
def trace(
    a: ArrayLike,
    offset: int | ArrayLike = ...,
    axis1: int | str = ...,
    axis2: int | str = ...,
    dtype: DTypeLike | None = ...,
    out: None = ...,
) -> Any: ...
def transpose(a: ArrayLike, axes: Sequence[int | str] | None = ...) -> Any: ...
def trapezoid(
    y: ArrayLike, x: ArrayLike | None = ..., dx: ArrayLike = ..., axis: int | str = ...
) -> Any: ...
def tril(m: ArrayLike, k: int = ...) -> Any: ...
def tril_indices_from(arr: ArrayLike | Any, k: int = ...) -> tuple[Any, Any]: ...
def fill_diagonal(
    a: ArrayLike, val: ArrayLike, wrap: builtins.bool = ..., *, inplace: builtins.bool = ...
) -> Any: ...
def trim_zeros(
    filt: ArrayLike, trim: str = ..., axis: int | str | Sequence[int | str] | None = ...
) -> Any: ...
def triu(m: ArrayLike, k: int = ...) -> Any: ...
def triu_indices_from(arr: ArrayLike | Any, k: int = ...) -> tuple[Any, Any]: ...
def true_divide(x: ArrayLike, y: ArrayLike, /) -> Any: ...
def trunc(x: ArrayLike, /) -> Any: ...
def union1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    *,
    size: int | None = ...,
    fill_value: ArrayLike | None = ...,
) -> Any: ...
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
) -> Any: ...
def unique_all(
    x: ArrayLike, /, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> Any: ...
def unique_counts(
    x: ArrayLike, /, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> Any: ...
def unique_inverse(
    x: ArrayLike, /, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> Any: ...
def unique_values(
    x: ArrayLike, /, *, size: int | None = ..., fill_value: ArrayLike | None = ...
) -> Any: ...
def unpackbits(
    a: ArrayLike,
    axis: int | str | None = ...,
    count: ArrayLike | None = ...,
    bitorder: str = ...,
) -> Any: ...
def unravel_index(indices: ArrayLike, shape: Any) -> tuple[Any, ...]: ...
def unstack(x: ArrayLike, /, *, axis: int | str = ...) -> tuple[Any, ...]: ...
def unwrap(
    p: ArrayLike,
    discont: ArrayLike | None = ...,
    axis: int | str = ...,
    period: ArrayLike = ...,
) -> Any: ...
def vander(x: ArrayLike, N: int | None = ..., increasing: builtins.bool = ...) -> Any: ...
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
) -> Any: ...
def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> Any: ...
def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int | str = ...,
    precision: PrecisionLike = ...,
    preferred_element_type: DTypeLike | None = ...,
) -> Any: ...
def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Any: ...
def vsplit(ary: ArrayLike, indices_or_sections: int | ArrayLike) -> list[Any]: ...
def vstack(
    tup: _np.ndarray[Any, Any] | _Array | Sequence[ArrayLike], dtype: DTypeLike | None = ...
) -> Any: ...
@overload
def where(
    condition: ArrayLike,
    /,
    *,
    size: int | None = ...,
    fill_value: None | ArrayLike | tuple[ArrayLike, ...] = ...,
) -> tuple[Any, ...]: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /) -> Any: ...
def zeros_like(
    a: ArrayLike | Any,
    dtype: DTypeLike | None = ...,
    shape: Any = ...,
    *,
    device: _Device | _Sharding | None = ...,
    out_sharding: NamedSharding | P | None = ...,
) -> Any: ...
def __getattr__(name: str) -> Any: ...
