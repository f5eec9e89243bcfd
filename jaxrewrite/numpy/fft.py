"""`jax.numpy.fft`, with every function transformed."""

import jax.numpy.fft as _jax_fft

from .._staging.namespace import transformed_namespace as _transformed_namespace


__getattr__, __dir__ = _transformed_namespace(_jax_fft, __name__)
