"""Pictures and videos as files: numpy arrays on one side, PNG and MP4 on the other."""
