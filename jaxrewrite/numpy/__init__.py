"""`jax.numpy`, with every function transformed.

Each function takes and returns values and arrays, as a program does under ``transform``.
Constants and dtypes are those of `jax.numpy`, and functions that take arrays out of JAX, such as
``save``, are those of NumPy. Nothing is built before it is used.

Examples
--------
>>> import jax, jax.numpy as jnp, jaxrewrite
>>> import jaxrewrite.numpy as rnp
>>> class Shifted(jaxrewrite.ArrayValue):
...     x: jax.Array
...     materialise_policy = "allow"
...     def materialise(self):
...         return self.x + 1
>>> rnp.sum(Shifted(jnp.zeros(3)))
Array(3., dtype=float32)
>>> rnp.float32 is jnp.float32
True

Axes may have names, if an argument is a `jaxrewrite.values.Named`:

>>> v = jaxrewrite.values.Named(jnp.arange(6.0).reshape(2, 3), ["batch", "feature"])
>>> rnp.sum(v, axis="batch")
Named([3. 5. 7.] (feature), dtype=float32)
>>> rnp.take(v, 1, axis="feature")
Named([1. 4.] (batch), dtype=float32)
"""

import jax.numpy as _jax_numpy

from .._staging.namespace import transformed_namespace as _transformed_namespace
from . import fft as fft, linalg as linalg


__getattr__, __dir__ = _transformed_namespace(_jax_numpy, __name__)
