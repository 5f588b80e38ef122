"""Ten lines from a folder of HDF5 files to batches of torch tensors."""

import ray_h5
from ray_h5.bench.workloads import make_workload

paths = make_workload("signals", size=0.05).paths  # four small files; yours: "data/*.h5"

ds = ray_h5.read_h5(paths, columns=["fhr_st", "target", "weight"], shuffle=True)
ds = ds.filter(expr=ray_h5.where(cs_label=True, epoch=ray_h5.between(10, 50)))

print(ds.schema(), ds.count(), "rows")
for batch in ds.iter_torch_batches(batch_size=32):
    print(batch["fhr_st"].shape, batch["target"].dtype)
