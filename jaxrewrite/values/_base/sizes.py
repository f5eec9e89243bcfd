"""What is known about sizes that may be symbolic, for all ready types."""

from __future__ import annotations

from jaxrewrite._axes.sizes import (
    are_known as are_known,
    common_divisor as common_divisor,
    is_at_most as is_at_most,
    is_divisor as is_divisor,
    is_less as is_less,
    known as known,
    least_bound as least_bound,
)
