from tests.torch_data.conftest import *  # noqa: F403  the files and fixtures of plain PyTorch
