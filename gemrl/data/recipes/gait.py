"""A gait for AntMaze's ant with nothing learned in it: it walks in any direction without turning.

Each leg's foot circles once a period, two diagonal legs half a period behind the other two (a
trot). Seen from the torso, the hip moves a foot sideways and the ankle moves it out and in, so the
hip swings by the part of the wanted direction that is tangential to the leg and the ankle by the
radial part. A spring and a damper pull the joints to these targets.
"""

from typing import NamedTuple

import numpy as np

from gemrl.envs.antmaze import ACTION_LEGS, LEGS


class Numbers(NamedTuple):
    """What shapes the gait: angles in radians, times in environment steps of 0.1 s."""

    period: float
    """Steps that one circle of a foot takes."""
    hip_swing: float
    ankle_rest: float
    """Angle below the horizontal about which a foot circles."""
    lift_sin: float
    lift_cos: float
    """How far a foot lifts in its circle, whatever the direction."""
    reach_sin: float
    reach_cos: float
    """How far a foot reaches out and in, times the radial part of the direction."""
    stiffness: float
    damping: float


# Found by tools/search_gait.py with its defaults, then rounded: 1.47 m/s under the datasets' noise,
# with 2 falls in 180 runs of 10 s.
GAIT = Numbers(
    period=7.6,
    hip_swing=1.42,
    ankle_rest=0.71,
    lift_sin=0.45,
    lift_cos=-0.57,
    reach_sin=-0.87,
    reach_cos=-0.96,
    stiffness=2.2,
    damping=0.43,
)

_X, _Y = np.array(LEGS, dtype=np.float64).T / np.sqrt(2)
_LAG = np.array([0.0, 0.5, 0.0, 0.5])
# Joints in the order of the actions: (hip, ankle) of each leg, which the observation holds in
# another order, positions from 7 and velocities from 15 + 6 on.
_JOINTS = np.array([2 * leg + joint for leg in ACTION_LEGS for joint in (0, 1)])


def walk(
    observations: np.ndarray, directions: np.ndarray, clock: np.ndarray, numbers: Numbers = GAIT
) -> np.ndarray:
    """Actions [E, 8] towards unit directions [E, 2] of the world; `clock` [E] counts steps."""
    w, x, y, z = observations[:, 3:7].T
    # The torso's own x axis, seen from above.
    heading = np.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z)])
    cos, sin = heading / np.maximum(np.hypot(*heading), 1e-6)
    forward = cos * directions[:, 0] + sin * directions[:, 1]
    left = cos * directions[:, 1] - sin * directions[:, 0]
    radial = forward[:, None] * _X + left[:, None] * _Y
    tangential = left[:, None] * _X - forward[:, None] * _Y

    turn = 2 * np.pi * ((clock / numbers.period)[:, None] + _LAG)
    sin, cos = np.sin(turn), np.cos(turn)
    hips = numbers.hip_swing * tangential * cos
    lift = numbers.lift_sin * sin + numbers.lift_cos * cos
    reach = numbers.reach_sin * sin + numbers.reach_cos * cos
    # The ankles of the legs towards negative x turn the other way.
    ankles = np.sign(_X) * (numbers.ankle_rest + lift + radial * reach)

    targets = np.stack([hips, ankles], axis=-1).reshape(len(observations), -1)[:, _JOINTS]
    error = targets - observations[:, 7:15][:, _JOINTS]
    actions = numbers.stiffness * error - numbers.damping * observations[:, 21:29][:, _JOINTS]
    return np.clip(actions, -1.0, 1.0)
