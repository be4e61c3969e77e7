"""Environments of their own for plugins whose packages exclude those of others."""

from rlinf_core.isolation.build import build
from rlinf_core.isolation.environments import (
    Environment,
    environment_of,
    environments_home,
    interpreter,
)
from rlinf_core.isolation.launch import child_environment

__all__ = [
    "Environment",
    "build",
    "child_environment",
    "environment_of",
    "environments_home",
    "interpreter",
]
