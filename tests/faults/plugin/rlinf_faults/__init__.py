"""A plugin whose parts fail as they are told to: see `strike`."""
