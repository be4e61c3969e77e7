"""The table: its MuJoCo model, and where blocks and gripper stand in an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.media.offscreen import load_mujoco
from rlinf_sim_tabletop.config import COLOURS

REACH = 0.38  # metres that the gripper goes from the middle, each way
_AREA, _APART = 0.32, 0.16  # where things are put at first, and how far from one another
_HIDDEN = (9.0, 9.0)  # of colours that are not on the table
_RGBA = {"red": ".9 .1 .1", "green": ".1 .8 .1", "blue": ".1 .2 .9", "yellow": ".9 .8 .1"}

_BLOCKS = "".join(
    f'<body name="{name}" mocap="true" pos="9 9 .03"><geom type="box" size=".05 .05 .03" '
    f'rgba="{_RGBA[name]} 1" contype="0" conaffinity="0"/></body>'
    for name in COLOURS
)
_MODEL = f"""<mujoco>
  <option timestep=".02"/>
  <visual><headlight ambient=".8 .8 .8" diffuse=".2 .2 .2" specular="0 0 0"/></visual>
  <worldbody>
    <camera name="top" pos="0 0 1.05" xyaxes="1 0 0 0 1 0" fovy="45"/>
    <geom type="plane" size=".5 .5 .1" rgba=".48 .46 .43 1"/>
    <body name="gripper" pos="0 0 .06">
      <joint name="x" type="slide" axis="1 0 0" damping="8" range="-.4 .4"/>
      <joint name="y" type="slide" axis="0 1 0" damping="8" range="-.4 .4"/>
      <geom type="cylinder" size=".03 .05" rgba="1 1 1 1" mass=".3" contype="0" conaffinity="0"/>
    </body>
    {_BLOCKS}
  </worldbody>
  <actuator><position joint="x" kp="60"/><position joint="y" kp="60"/></actuator>
</mujoco>"""


@dataclass(frozen=True)
class Start:
    """Of one episode."""

    gripper: NDArray[np.float64]  # [2]
    blocks: NDArray[np.float64]  # [colours, 2]; those that are not on the table far away
    wanted: int  # colour of the block to reach
    verb: int  # which word says so


def mujoco() -> Any:  # Any: the module has no types
    """Raises `ConfigError` with the line that installs it."""
    return load_mujoco("tabletop", "pip install 'mujoco>=3.2'")


def model() -> Any:  # Any: an MjModel
    """A new one."""
    return mujoco().MjModel.from_xml_string(_MODEL)


def start(seed: int, blocks: int, colours: int, verbs: int) -> Start:
    """What follows from the seed of an episode."""
    random = np.random.default_rng(seed)
    while True:
        places = random.uniform(-_AREA, _AREA, (blocks + 1, 2))
        apart = np.linalg.norm(places[:, None] - places, axis=-1) + np.eye(blocks + 1)
        if apart.min() > _APART:
            break
    chosen = random.permutation(colours)[:blocks]
    put = np.tile(np.array(_HIDDEN), (len(COLOURS), 1))
    put[chosen] = places[:blocks]
    return Start(places[blocks], put, int(random.choice(chosen)), int(random.integers(verbs)))
