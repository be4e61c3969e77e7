"""The conformance kit: checks that a plugin author runs, and small real plugins to run them against."""

from rlinf_core.testing.pytest_plugin import parametrize_with_checks

__all__ = ["parametrize_with_checks"]
