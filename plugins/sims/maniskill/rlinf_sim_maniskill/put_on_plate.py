"""One of 25 objects is to be put on a plate: a task over ManiSkill's interface, for its CPU and GPU physics.

What success is, what is paid for and how the robot starts is as in RL4VLA (arXiv:2505.19789, appendix).
Axes: B environments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.agents.robots.panda import Panda
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.tasks.digital_twins.bridge_dataset_eval.base_env import (
    BRIDGE_DATASET_ASSET_PATH,
    WidowX250SBridgeDatasetFlatTable,
)
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.structs.actor import Actor
from mani_skill.utils.structs.pose import Pose
from mani_skill.utils.structs.types import SimConfig

from rlinf_core.errors import ConfigError
from rlinf_sim_maniskill.catalogue import Item, read_catalogue
from rlinf_sim_maniskill.overlay import Overlay
from rlinf_sim_maniskill.room import TOP, build_room, build_thing, parked, standing, turned_half
from rlinf_sim_maniskill.variants import JOINTS, MOVED_AT, VARIANTS, Episode, Subset, check, draw

Tensor = torch.Tensor
CAMERA = "3rd_view_camera"
HELD = 5  # steps in a row that count as holding
ON_XY, ON_Z, TOUCH = 0.01, 0.05, 0.03  # tolerances in metres, least force in newtons
WORTH = {"grasped": 0.1, "held": 0.1, "placed": 1.0}
WIDOWX, PANDA = WidowX250SBridgeDatasetFlatTable.uid, Panda.uid
BASES = {WIDOWX: (0.147, 0.028, TOP), PANDA: (0.455, 0.0, TOP)}  # both look to where things are, -x
JOINTS_AT_START = {
    WIDOWX: (-0.01840777, 0.0398835, 0.22242722, -0.00460194, 1.36524296, 0.00153398, 0.037, 0.037),
    PANDA: (0.0, np.pi / 8, 0.0, -np.pi * 5 / 8, 0.0, np.pi * 3 / 4, np.pi / 4, 0.04, 0.04),
}
STAGE = BRIDGE_DATASET_ASSET_PATH / "stages/bridge_table_1_v1.glb"


class PutOnPlate(BaseEnv):  # type: ignore[misc]  # untyped
    """Which object goes on which plate is what the instruction says."""

    SUPPORTED_ROBOTS = [WIDOWX, PANDA]  # noqa: RUF012 - ManiSkill's own way to say it
    SUPPORTED_OBS_MODES = ("state", "state_dict", "none", "rgb+segmentation", "rgb+segmentation+state")
    SUPPORTED_REWARD_MODES = ("normalized_dense", "dense", "sparse", "none")

    def __init__(
        self,
        *args: Any,  # Any: of ManiSkill
        variant: str,
        assets: str = "",
        objects: Subset = "train",
        robot_uids: str = WIDOWX,
        num_envs: int = 1,
        **kwargs: Any,
    ) -> None:
        if robot_uids not in BASES:
            raise ConfigError(
                f"simulator.robot (maniskill): {robot_uids!r} does not put things on plates; {WIDOWX} (the "
                f"default) and {PANDA} do"
            )
        self.variant, self.subset = VARIANTS[variant], objects
        self.catalogue = read_catalogue(assets)
        check(self.variant, self.catalogue, self.subset)
        self.episodes: list[Episode | None] = [None] * num_envs
        self._overlay = Overlay(self.catalogue, self.variant)
        super().__init__(*args, robot_uids=robot_uids, num_envs=num_envs, **kwargs)

    @property
    def _default_sim_config(self) -> SimConfig:
        if self.robot_uids == WIDOWX:
            return SimConfig(sim_freq=500, control_freq=5, spacing=20)
        return SimConfig(sim_freq=100, control_freq=5, spacing=20)

    @property
    def _default_sensor_configs(self) -> list[CameraConfig]:
        if self.robot_uids == WIDOWX:
            return []  # the robot brings the camera of the Bridge data
        pose = sapien_utils.look_at([0.30, -0.42, TOP + 0.50], [-0.16, 0.02, TOP])
        return [CameraConfig(CAMERA, pose, 256, 256, 0.9, 0.01, 10)]

    @property
    def _default_human_render_camera_configs(self) -> CameraConfig:
        pose = sapien_utils.look_at([-0.75, 0.45, TOP + 0.55], [-0.05, 0.0, TOP + 0.05])
        return CameraConfig("render_camera", pose, 512, 512, 0.9, 0.01, 10)

    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, sapien.Pose(BASES[self.robot_uids], q=[0, 0, 0, 1]))

    def _load_scene(self, options: dict[str, Any]) -> None:
        build_room(self.scene, STAGE if self.robot_uids == WIDOWX else None)
        count = len(self.catalogue.objects)
        self._objects = [build_thing(self.scene, item, n) for n, item in enumerate(self.catalogue.objects)]
        self._plates = [
            build_thing(self.scene, item, count + n) for n, item in enumerate(self.catalogue.plates)
        ]
        shape = (self.num_envs,)
        self._object_B = torch.zeros(shape, dtype=torch.long, device=self.device)
        self._plate_B = torch.zeros(shape, dtype=torch.long, device=self.device)
        self._half_object_B3 = torch.zeros((*shape, 3), device=self.device)
        self._half_plate_B3 = torch.zeros((*shape, 3), device=self.device)
        self._grasps_B = torch.zeros(shape, dtype=torch.int32, device=self.device)  # in a row
        self._counted_B = torch.full(
            shape, -1, dtype=torch.int32, device=self.device
        )  # the last step of these
        self._grasped_B = torch.zeros(shape, dtype=torch.bool, device=self.device)
        self._held_B = torch.zeros(shape, dtype=torch.bool, device=self.device)

    def _after_reconfigure(self, options: dict[str, Any]) -> None:
        things = [*self.agent.robot.get_links(), *self._objects, *self._plates]
        numbers = {id(thing): number for number, thing in self.segmentation_id_map.items()}
        self._overlay.front = torch.tensor(
            [numbers[id(thing)] for thing in things if id(thing) in numbers], device=self.device
        )

    def _initialize_episode(self, env_idx: Tensor, options: dict[str, Any]) -> None:
        rows = env_idx.tolist()
        for n in rows:
            self.episodes[n] = draw(self.variant, self.catalogue, self.subset, int(self._episode_seed[n]))
        begun = [self._episode(n) for n in rows]
        self._arrange(self._objects, self.catalogue.objects, [self._objects_of(each) for each in begun], 0)
        self._arrange(
            self._plates, self.catalogue.plates, [self._plates_of(each) for each in begun], len(self._objects)
        )
        self._object_B[env_idx] = torch.tensor([each.object for each in begun], device=self.device)
        self._plate_B[env_idx] = torch.tensor([each.plate for each in begun], device=self.device)
        turned = [turned_half(self.catalogue.objects[each.object].half, each.turn) for each in begun]
        self._half_object_B3[env_idx] = self._floats(turned)
        self._half_plate_B3[env_idx] = self._floats(
            [self.catalogue.plates[each.plate].half for each in begun]
        )
        for counter, value in ((self._grasps_B, 0), (self._counted_B, -1), (self._grasped_B, False)):
            counter[env_idx] = value
        self._held_B[env_idx] = False
        start = np.tile(JOINTS_AT_START[self.robot_uids], (len(rows), 1))
        start[:, :JOINTS] += [each.offsets for each in begun]
        self.agent.robot.set_pose(sapien.Pose(BASES[self.robot_uids], q=[0, 0, 0, 1]))
        self.agent.reset(init_qpos=self._floats(start))

    def get_language_instruction(self) -> list[str]:
        """Of each environment."""
        return [self._text(each) for each in self.episodes if each is not None]

    def evaluate(self) -> dict[str, Tensor]:
        """Success, and what is paid for on the way there."""
        grasping_B = self._chosen(self._objects, self._object_B, self.agent.is_grasping)
        new_B = self._counted_B != self._elapsed_steps
        counted_B = torch.where(grasping_B, self._grasps_B + 1, 0)
        self._grasps_B[:] = torch.where(new_B, counted_B, self._grasps_B)
        self._counted_B[:] = self._elapsed_steps
        self._grasped_B |= grasping_B
        self._held_B |= self._grasps_B >= HELD
        return {
            "is_src_obj_grasped": self._grasped_B.clone(),
            "consecutive_grasp": self._held_B.clone(),
            "success": self._is_on_plate(),
        }

    def compute_dense_reward(self, obs: Any, action: Tensor, info: dict[str, Tensor]) -> Tensor:
        """What has been reached: a grasp, holding, and the object on the plate after a grasp."""
        placed_B = info["success"] & info["is_src_obj_grasped"]
        grasped_B, held_B = info["is_src_obj_grasped"], info["consecutive_grasp"]
        return WORTH["grasped"] * grasped_B + WORTH["held"] * held_B + WORTH["placed"] * placed_B

    def compute_normalized_dense_reward(self, obs: Any, action: Tensor, info: dict[str, Tensor]) -> Tensor:
        """Up to 1."""
        return self.compute_dense_reward(obs, action, info) / sum(WORTH.values())

    def _before_control_step(self) -> None:
        moved = [n for n, each in enumerate(self.episodes) if each is not None and each.moved_to is not None]
        rows = [n for n in moved if int(self._elapsed_steps[n]) == MOVED_AT]
        for n in rows:
            episode = self._episode(n)
            self.scene._reset_mask[:] = False
            self.scene._reset_mask[n] = True
            item = self.catalogue.objects[episode.object]
            self._objects[episode.object].set_pose(
                self._pose([standing(item, episode.moved_to, episode.turn)])
            )
        if rows:
            self.scene._reset_mask[:] = True
            if self.gpu_sim_enabled:
                self.scene._gpu_apply_all()

    def _get_obs_extra(self, info: dict[str, Tensor]) -> dict[str, Tensor]:
        hand_B3 = self._hand()
        if not self.obs_mode_struct.use_state and self.obs_mode not in ("state", "state_dict"):
            return {"hand": hand_B3}
        object_B7 = self._chosen(self._objects, self._object_B, lambda actor: actor.pose.raw_pose)
        plate_B7 = self._chosen(self._plates, self._plate_B, lambda actor: actor.pose.raw_pose)
        return {
            "hand": hand_B3,
            "object": object_B7,
            "plate": plate_B7,
            "hand_to_object": object_B7[:, :3] - hand_B3,
            "object_to_plate": plate_B7[:, :3] - object_B7[:, :3],
            "sizes": torch.cat([self._half_object_B3, self._half_plate_B3], dim=1),
            "grasped": self._grasped_B.float()[:, None],
        }

    def _get_obs_sensor_data(self, apply_texture_transforms: bool = True) -> dict[str, dict[str, Tensor]]:
        seen: dict[str, dict[str, Tensor]] = super()._get_obs_sensor_data(apply_texture_transforms)
        if CAMERA in seen and {"rgb", "segmentation"} <= set(seen[CAMERA]):
            tables = [None if each is None else each.table for each in self.episodes]
            view = seen[CAMERA]
            view["rgb"] = self._overlay.put(view["rgb"], view["segmentation"][..., 0], tables)
        return seen

    def _is_on_plate(self) -> Tensor:
        object_B3 = self._chosen(self._objects, self._object_B, lambda actor: actor.pose.p)
        plate_B3 = self._chosen(self._plates, self._plate_B, lambda actor: actor.pose.p)
        offset_B3 = object_B3 - plate_B3
        over_B = torch.linalg.norm(offset_B3[:, :2], dim=1) <= self._half_plate_B3.amax(dim=1) + ON_XY
        gap_B = offset_B3[:, 2] - self._half_plate_B3[:, 2] - self._half_object_B3[:, 2]
        force_B3 = self._chosen(self._objects, self._object_B, self._force_on_plate)
        touching_B = torch.linalg.norm(force_B3, dim=1) > TOUCH
        on_B: Tensor = over_B & (offset_B3[:, 2] > 0) & (gap_B <= ON_Z) & touching_B
        return on_B

    def _force_on_plate(self, thing: Actor) -> Tensor:
        return self._chosen(
            self._plates, self._plate_B, lambda plate: self.scene.get_pairwise_contact_forces(thing, plate)
        )

    def _chosen(self, actors: Sequence[Actor], which_B: Tensor, read: Callable[[Actor], Tensor]) -> Tensor:
        """What is read of the thing that each environment is about."""
        found: Tensor | None = None
        for k in sorted(set(which_B.tolist())):
            value = read(actors[k])
            mine_B = (which_B == k).reshape(-1, *[1] * (value.ndim - 1))
            found = value if found is None else torch.where(mine_B, value, found)
        assert found is not None  # there is at least one environment
        return found

    def _hand(self) -> Tensor:
        """Where it grasps; between the fingers for robots that do not say."""
        if self.robot_uids == PANDA:
            hand_B3: Tensor = self.agent.tcp.pose.p
        else:
            hand_B3 = (self.agent.finger1_link.pose.p + self.agent.finger2_link.pose.p) / 2
        return hand_B3

    def _objects_of(self, episode: Episode) -> dict[int, tuple[Any, float]]:
        """Place and turn of those that are on the table."""
        found: dict[int, tuple[Any, float]] = {episode.object: (episode.object_at, episode.turn)}
        if self.variant.other == "object":
            found[_index(episode.other)] = (episode.other_at, episode.turn)
        return found

    def _plates_of(self, episode: Episode) -> dict[int, tuple[Any, float]]:
        found: dict[int, tuple[Any, float]] = {episode.plate: (episode.plate_at, 0.0)}
        if self.variant.other == "plate":
            found[_index(episode.other)] = (episode.other_at, 0.0)
        return found

    def _arrange(
        self,
        actors: Sequence[Actor],
        items: Sequence[Item],
        wanted: Sequence[dict[int, tuple[Any, float]]],
        first: int,
    ) -> None:
        for k, (actor, item) in enumerate(zip(actors, items, strict=True)):
            poses = [
                standing(item, *places[k]) if k in places else parked(item, first + k) for places in wanted
            ]
            actor.set_pose(self._pose(poses))

    def _pose(self, poses: Sequence[tuple[Any, Any]]) -> Pose:
        return Pose.create_from_pq(self._floats([p for p, _ in poses]), self._floats([q for _, q in poses]))

    def _floats(self, values: Any) -> Tensor:  # Any: numbers, nested
        return torch.as_tensor(np.asarray(values, dtype=np.float32), device=self.device)

    def _episode(self, n: int) -> Episode:
        episode = self.episodes[n]
        assert episode is not None  # it was drawn when the environment was reset
        return episode

    def _text(self, episode: Episode) -> str:
        names = self.catalogue.objects[episode.object].name, self.catalogue.plates[episode.plate].name
        return self.catalogue.phrasings[episode.phrasing].format(object=names[0], plate=names[1])


def _index(number: int | None) -> int:
    assert number is not None  # these variants draw one
    return number
