"""Pytrees of values in files, adapters in the format of peft, and weights that others quantised.

``docs/checkpoints.rst`` tells which library stores what. `save` and `load` need the package
``safetensors``, and so do `save_adapter` and `load_adapter`; nothing else needs more than JAX.
"""

from ._adapters import load_adapter as load_adapter, save_adapter as save_adapter
from ._files import load as load, save as save
from ._gguf import GGUFTensors as GGUFTensors, load_gguf as load_gguf
from ._hf import HFTensors as HFTensors, load_hf as load_hf
from ._storable import from_storable as from_storable, to_storable as to_storable
