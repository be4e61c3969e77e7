"""Finds tasks that are registered with ManiSkill, with errors that say what is there."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_sim_maniskill.config import ManiSkillConfig

Spec = Any  # `EnvSpec` of ManiSkill, which is untyped


def registered() -> dict[str, Spec]:
    """All that is registered by now, the tasks of this plugin among it."""
    try:
        importlib.import_module("mani_skill.envs")
    except ImportError as err:
        raise ConfigError(
            f"simulator maniskill needs ManiSkill, which cannot be imported: {err}; give it an environment "
            "of its own by `rlinf plugins install maniskill --isolated`, or install it in this one by "
            "pip install 'rlinf-sim-maniskill[inside]'"
        ) from err
    from mani_skill.utils.registration import REGISTERED_ENVS

    from rlinf_sim_maniskill.family import register

    register()
    specs: dict[str, Spec] = REGISTERED_ENVS
    return specs


def find(config: ManiSkillConfig) -> Spec:
    """The task of `config.id`, whose files are there. Raises `ConfigError`."""
    specs = registered()
    for module in config.imports:
        try:
            importlib.import_module(module)
        except ImportError as err:
            raise ConfigError(
                f"simulator.imports (maniskill): {module!r} cannot be imported: {err}; install it"
            ) from err
    if config.id not in specs:
        near = difflib.get_close_matches(config.id, specs, n=4, cutoff=0.4)
        raise ConfigError(
            f"simulator.id (maniskill): there is no task {config.id!r}"
            + (f"; near names: {', '.join(near)}" if near else "")
            + "; tasks of other packages need simulator.imports"
        )
    spec = specs[config.id]
    _check_files(config, spec)
    return spec


def _check_files(config: ManiSkillConfig, spec: Spec) -> None:
    """ManiSkill itself would ask on the terminal, and end the process."""
    missing = [name for name in _sources(config, spec) if not _is_there(name)]
    if not missing:
        return
    from mani_skill import ASSET_DIR

    asked = [uid for uid in (config.id, *robots(config, spec)) if _needs(uid)]
    folder = os.environ.get("MS_ASSET_DIR", "")
    variable = f"MS_ASSET_DIR={folder} " if folder else ""
    commands = "; ".join(
        f"{variable}{sys.executable} -m mani_skill.utils.download_asset {uid}" for uid in asked
    )
    shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
    raise ConfigError(
        f"simulator.id (maniskill): {config.id} needs files that are not in {ASSET_DIR} (MS_ASSET_DIR says "
        f"where): {shown}; download them by `{commands}`; mind their licences"
    )


def _sources(config: ManiSkillConfig, spec: Spec) -> Iterator[str]:
    for uid in (spec.uid, *robots(config, spec)):
        yield from _needs(uid)


def _needs(uid: str) -> list[str]:
    from mani_skill.utils import assets

    if not assets.DATA_GROUPS.get(uid):
        return []
    return sorted(assets.expand_data_group_into_individual_data_source_ids(uid))


def _is_there(source: str) -> bool:
    from mani_skill.utils import assets

    return bool(assets.is_data_source_downloaded(source))


def robots(config: ManiSkillConfig, spec: Spec) -> list[str]:
    """That the task will have; as far as it says."""
    if config.robot:
        return [config.robot]
    parameter = inspect.signature(spec.cls.__init__).parameters.get("robot_uids")
    chosen = spec.default_kwargs.get("robot_uids", parameter.default if parameter else None)
    return [uid for uid in (chosen if isinstance(chosen, list | tuple) else [chosen]) if isinstance(uid, str)]
