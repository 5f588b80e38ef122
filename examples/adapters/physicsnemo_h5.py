"""HDF5 for the datapipes of physicsnemo, read by ray_h5: another reader of its registry.

    import physicsnemo_h5
    dataset = physicsnemo.datapipes.Dataset(physicsnemo_h5.RayH5Reader("runs/", fields=["points", "pressure"]))

In a configuration of Hydra, `_target_: ${dp:RayH5Reader}`. It takes the options of its own `HDF5Reader`; the
`coordinated_subsampling` of its Zarr reader, for a folder; and those of `H5Dataset`, such as `rows=Groups("run_*")`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from physicsnemo.datapipes import Reader, register
from physicsnemo.datapipes._indexing import _cyclic_block_indices

from ray_h5.torch_data import Files, H5Dataset, RowReader


@register()
class RayH5Reader(Reader):
    """Samples along the first axis of a file, or one in each file of a folder."""

    def __init__(
        self,
        path: Path | str,
        *,
        fields: Sequence[str] | None = None,
        file_pattern: str = "*.h5",
        pin_memory: bool = False,
        include_index_in_metadata: bool = True,
        coordinated_subsampling: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        parts = None if coordinated_subsampling is None else dict(coordinated_subsampling)
        super().__init__(
            pin_memory=pin_memory,
            include_index_in_metadata=include_index_in_metadata,
            coordinated_subsampling=parts,
        )
        is_folder = Path(path).is_dir()
        if parts is not None and not is_folder:
            raise ValueError(f"{path}: coordinated_subsampling= is for a folder, a sample in each file")
        paths = [str(file) for file in Path(path).glob(file_pattern)] if is_folder else [str(path)]
        if not paths:
            raise ValueError(f"no files matching {file_pattern!r} found in {path}")
        rows = {"rows": Files()} if is_folder else {}
        dataset = H5Dataset(paths, fields and list(fields), **rows | options)
        self.fields = dataset.columns
        self._targets = [name for name in self.fields if parts is not None and name in parts["target_keys"]]
        whole = [name for name in self.fields if name not in self._targets]
        if self._targets and whole:
            dataset = H5Dataset(paths, whole, **rows | options)
        self._dataset, self._has_whole = dataset, bool(whole)
        self._order = list(range(len(dataset)))
        if is_folder and "rows" not in options:  # its own readers sort names as text: run_10 before run_2
            self._order.sort(key=lambda i: Path(self._path(i)))

    def _path(self, row: int) -> str:
        return self._dataset.origins([row])[0][0]

    def _load_sample(self, index: int) -> dict[str, torch.Tensor]:
        row = self._order[index]
        found = dict(self._dataset[row]) if self._has_whole else {}
        if self._targets:
            reader, count = RowReader(self._path(row)), self._coordinated_subsampling_config["n_points"]
            total = reader.column(self._targets[0]).shape[0]
            points = _cyclic_block_indices(total, count, generator=self._index_generator(index)).numpy()
            found |= {name: torch.from_numpy(values) for name, values in reader.read(self._targets, points).items()}
        return {name: found[name] for name in self.fields}

    def __len__(self) -> int:
        return len(self._dataset)

    def _get_field_names(self) -> list[str]:
        return self.fields

    def _get_sample_metadata(self, index: int) -> dict[str, Any]:
        path = self._path(self._order[index])
        return {"source_file": path, "source_filename": Path(path).name}

    @property
    def _supports_coordinated_subsampling(self) -> bool:
        return True

    def close(self) -> None:
        """Close the dataset."""
        super().close()
        self._dataset.close()

    def __repr__(self) -> str:
        return f"RayH5Reader({self._dataset!r})"
