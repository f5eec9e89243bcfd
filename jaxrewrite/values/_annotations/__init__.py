"""Arrays that carry something besides: tags, names, units, a mask, bounds; and random keys.

`declaration` says once, for any of them, which operands their rules are for.
"""
