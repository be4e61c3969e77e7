"""The program that draws one picture, or asks for Vulkan's devices: `python -m rlinf_core.checkup.draw WAY`

It prints one JSON object: what was found, or why not.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import sys
import time
from typing import Any

_SIZE = 64
_SCENE = """
<mujoco>
  <visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual>
  <worldbody>
    <camera name="eye" pos="0 -3 0" xyaxes="1 0 0 0 0 1"/>
    <geom type="box" size="0.4 0.4 0.4" rgba="1 0 0 1"/>
  </worldbody>
</mujoco>
"""
_RENDERER = 0x1F01  # GL_RENDERER


def main() -> None:
    """By the way that the command line names."""
    way = sys.argv[1]
    try:
        found = _vulkan() if way == "vulkan" else _opengl(way)
    except Exception as err:  # the border of drivers: whatever goes wrong is what is asked for
        found = {"error": f"{type(err).__name__}: {err}"}
    print(json.dumps(found))


def _opengl(way: str) -> dict[str, Any]:  # Any: JSON values
    os.environ["MUJOCO_GL"] = way
    try:
        import mujoco
    except ModuleNotFoundError:
        return {"lacks": "mujoco"}
    from rlinf_core.media.offscreen import Camera

    model: Any = mujoco.MjModel.from_xml_string(_SCENE)
    data: Any = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = Camera(model, _SIZE, {"fixedcamid": 0}, shadows=False, simulator="of the checkup")
    began = time.perf_counter()
    picture = camera.frame(model, data, fixed=0)
    seconds = time.perf_counter() - began
    middle, corner = picture[_SIZE // 2, _SIZE // 2], picture[0, 0]
    if not (middle[0] > 200 and middle[1] < 60 and middle[2] < 60 and corner[0] < 60):
        return {
            "error": f"the middle of a red cube is drawn as {middle.tolist()}, beside it {corner.tolist()}"
        }
    return {"seconds": seconds, "renderer": _renderer(way)}


def _renderer(way: str) -> str:
    """What draws, as the current context says."""
    library = ctypes.util.find_library("OSMesa" if way == "osmesa" else "GL") or ctypes.util.find_library(
        "OpenGL"
    )
    if library is None:
        return ""
    ask = ctypes.CDLL(library).glGetString
    ask.restype, ask.argtypes = ctypes.c_char_p, [ctypes.c_uint]
    return (ask(_RENDERER) or b"").decode(errors="replace")


def _vulkan() -> dict[str, Any]:  # Any: JSON values
    """The names of physical devices, by the C interface of Vulkan's loader."""
    library = ctypes.CDLL(ctypes.util.find_library("vulkan") or "libvulkan.so.1")
    wanted = (ctypes.c_uint64 * 8)(1)  # VkInstanceCreateInfo: its type, and nothing beside
    instance = ctypes.c_void_p()
    code = library.vkCreateInstance(ctypes.byref(wanted), None, ctypes.byref(instance))
    if code:
        return {"error": f"no driver of Vulkan works here (vkCreateInstance returns {code})"}
    count = ctypes.c_uint32()
    library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    devices = (ctypes.c_void_p * count.value)()
    library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
    names = []
    for device in devices:
        properties = ctypes.create_string_buffer(
            4096
        )  # VkPhysicalDeviceProperties: the name behind 5 numbers
        library.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), properties)
        names.append(properties.raw[20:276].partition(b"\0")[0].decode(errors="replace"))
    library.vkDestroyInstance(instance, None)
    return {"devices": names}


if __name__ == "__main__":
    main()
