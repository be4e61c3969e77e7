"""The engines that ship with the core: processes of this machine, and the calling process itself."""
