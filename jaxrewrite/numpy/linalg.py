"""`jax.numpy.linalg`, with every function transformed."""

import jax.numpy.linalg as _jax_linalg

from .._staging.namespace import transformed_namespace as _transformed_namespace


__getattr__, __dir__ = _transformed_namespace(_jax_linalg, __name__)
