"""The colours as colour-blind readers see them: protanopia and deuteranopia, by the matrices of Viénot,
Brettel and Mollon (1999) in linear light."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

import srmlab.figures  # registers the maps
from srmlab.figures import palette
from srmlab.figures.sweeps import MODELS

# linear RGB → what is left of it
VISION = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "deuteranopia": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
}


def linear(color: str) -> np.ndarray:
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(color: str, vision: str) -> np.ndarray:
    """CIELAB (D65) of a colour, as seen."""
    rgb = np.clip(VISION[vision] @ linear(color), 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ rgb / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(a: str, b: str, vision: str) -> float:
    return float(np.linalg.norm(lab(a, vision) - lab(b, vision)))


@pytest.mark.parametrize("vision", VISION)
def test_the_first_six_streams_are_told_apart(vision):
    six = palette.STREAMS[:6]
    nearest = min(apart(a, b, vision) for i, a in enumerate(six) for b in six[:i])
    assert nearest > 12  # 2.3 is just noticeable


@pytest.mark.parametrize("vision", VISION)
def test_the_models_of_an_experiment_are_told_apart(vision):
    nearest = min(apart(a, b, vision) for i, a in enumerate(MODELS) for b in [*MODELS][:i])
    assert nearest > 12


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("stops", [palette.SHARE, palette.SHARE_DARK])
def test_a_share_goes_one_way_in_lightness(vision, stops):
    lightness = np.diff([lab(color, vision)[0] for color in stops])
    assert (lightness < 0).all() or (lightness > 0).all()


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("stops", [palette.SIGNED, palette.SIGNED_DARK])
def test_below_and_above_zero_are_told_apart_and_grow_from_the_middle(vision, stops):
    middle = len(stops) // 2
    for step in range(2, middle + 1):
        assert apart(stops[middle - step], stops[middle + step], vision) > 12
    for side in (stops[: middle + 1][::-1], stops[middle:]):
        away = [abs(lab(color, vision)[0] - lab(stops[middle], vision)[0]) for color in side]
        assert (np.diff(away) > 0).all()


def test_white_letters_are_read_on_the_steps():
    for color in palette.STEPS:
        luminance = np.array([0.2126, 0.7152, 0.0722]) @ linear(color)
        assert 1.05 / (luminance + 0.05) >= 4.5, color


def test_figures_know_the_maps_by_name():
    assert srmlab.figures
    for name, stops in ((palette.SHARE_MAP, palette.SHARE), (palette.SIGNED_MAP, palette.SIGNED)):
        ends = [mpl.colors.to_hex(mpl.colormaps[name](end)) for end in (0.0, 1.0)]
        assert ends == [stops[0].lower(), stops[-1].lower()]
