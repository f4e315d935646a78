"""The services that every server of ours has on its port beside its own: health, reflection, connections."""
