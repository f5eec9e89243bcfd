"""Arrays that carry something: tags, names, units, a mask or bounds; and random keys.

`declaration` registers the rules of such a type for all signatures that they need.
"""
