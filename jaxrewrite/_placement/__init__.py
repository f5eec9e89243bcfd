"""Values on meshes of devices."""
