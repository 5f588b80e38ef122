"""Ten lines from a folder of HDF5 files to batches of torch tensors: the first snippet of README.md.

It makes the files first: four with 100 images each, in a temporary folder.
"""

import os
import tempfile
from pathlib import Path

import h5py
import numpy as np

folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
Path("data").mkdir()
rng = np.random.default_rng(0)
for number in range(4):
    with h5py.File(f"data/run_{number}.h5", "w") as file:
        file["image"] = rng.random((100, 3, 32, 32), dtype="f4")
        file["label"] = rng.integers(0, 4, 100)
        file["quality"] = rng.random(100)

# With files of your own, you need only the lines from here on.
import ray_h5

ray_h5.quiet()  # turns down what Ray prints
ds = ray_h5.read_h5("data/*.h5", columns=["image", "label"], shuffle=True)
ds = ds.filter(expr=ray_h5.where(label=[1, 2], quality=ray_h5.between(0.5, None)))

print(ds.schema())
print(ds.count(), "rows")
for batch in ds.iter_torch_batches(batch_size=32):
    print(batch["image"].shape, batch["label"].dtype)
