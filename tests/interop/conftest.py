"""No test here may reach for the network, in this process or in one it starts."""

import os

from huggingface_hub import constants

for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[name] = "1"
constants.HF_HUB_OFFLINE = True  # where somebody has imported it before


def pytest_configure(config):
    for mark in (
        "accelerate_tests",
        "flash_attn_test",
        "flash_attn_3_test",
        "flash_attn_4_test",
        "torch_compile_test",
    ):
        config.addinivalue_line("markers", f"{mark}: in transformers' own tests")
