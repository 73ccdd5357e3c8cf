"""Bus-generic discovery and health rules. What only one chip family has stands in backends/<chip>/."""
