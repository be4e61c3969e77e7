"""Options of the tracker `mlflow`."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class MLflowConfig:
    """Settings of `mlflow`."""

    uri: str = (
        ""  # a server (https://...) or a database (sqlite:///...); empty: a database in the run's folder
    )
    experiment: str = "rlinf"  # where the run lies; made if there is none
    run_name: str = ""  # empty: the name of its folder
    tags: dict[str, str] = field(default_factory=dict)  # to find the run by
    timeout_s: int = 20  # of one request to a server, of which a call may make several

    def __post_init__(self) -> None:
        if not self.experiment:
            raise ConfigError("trackers.experiment (mlflow): empty; give a name")
        if not 1 <= self.timeout_s <= 100:
            raise ConfigError(
                f"trackers.timeout_s (mlflow): {self.timeout_s}: must lie between 1 and 100; a run waits no "
                "longer for a tracker"
            )
