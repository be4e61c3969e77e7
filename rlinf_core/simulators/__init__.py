"""What simulator plugins share; it imports numpy and the interface alone, for environments of their own."""

from rlinf_core.simulators.one_by_one import OneByOne

__all__ = ["OneByOne"]
