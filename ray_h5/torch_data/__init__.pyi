# ruff: noqa: F403, I001  the first definition of a name counts
# The names of ray_h5 that need no Ray, and others where those of ray_h5 do.

from ray_h5.index.folds import kfold as kfold
from ray_h5.predicates.criteria import where as where
from ray_h5.torch_data.standardize import Standardize as Standardize
from ray_h5.transforms.image_transform import DecodeImage as DecodeImage
from ray_h5 import *
from ray_h5 import _balanced_contiguous_shard as _balanced_contiguous_shard
from ray_h5 import _interleaved_indices as _interleaved_indices
from ray_h5.errors import *
