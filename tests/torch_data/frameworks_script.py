"""One process of two of a training framework: python frameworks_script.py FRAMEWORK FOLDER FILE

It trains two epochs with each kind of loader, and writes to FOLDER which rows this process got in each.
"""

import importlib
import itertools
import json
import logging
import os
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from ray_h5.torch_data import (
    EpochShuffleSampler,
    H5DataLoader,
    H5Dataset,
    OptimalDataLoaderFactory,
    OrderBatchSampler,
    OrderSampler,
    RankMemCachedH5Dataset,
    create_optimized_dataloader,
    loader,
)

BATCH = 32

FRAMEWORK, FOLDER, FILE = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


class Shard(RankMemCachedH5Dataset):
    """A rank's shard whose samples are like those of the others."""

    def __getitem__(self, index):
        return {"row": super().__getitem__(index)[0]}


def makers():
    """What people write, by name."""
    dataset = H5Dataset(FILE)
    order = partial(OrderSampler, dataset, seed=3)
    batches = partial(OrderBatchSampler, dataset, BATCH, seed=3)
    optimized = partial(create_optimized_dataloader, FILE, BATCH, num_workers=2, load_fields=["row"])
    factory = partial(OptimalDataLoaderFactory.create_training_loader, dataset, BATCH, drop_last=False)
    workers = {"num_workers": 2, "persistent_workers": True}
    return {
        "sampler": lambda: DataLoader(dataset, BATCH, sampler=order()),
        "sampler_stretch": lambda: DataLoader(dataset, batch_size=BATCH, sampler=order(stretch=BATCH)),
        "sampler_workers": lambda: DataLoader(dataset, batch_size=BATCH, sampler=order(), **workers),
        "batch_sampler": lambda: DataLoader(dataset, batch_sampler=batches()),
        "batch_sampler_workers": lambda: DataLoader(dataset, batch_sampler=batches(), num_workers=2),
        "batches_as_samples": lambda: DataLoader(dataset, batch_size=None, sampler=batches()),
        "stateful_sampler": lambda: StatefulDataLoader(dataset, batch_size=BATCH, sampler=order()),
        "stateful_batch_sampler": lambda: StatefulDataLoader(dataset, batch_sampler=batches()),
        "loader": lambda: loader(dataset, BATCH, seed=3),
        "loader_of_paths": lambda: loader(FILE, BATCH, shuffle="chunks", threads=2),
        "h5_batch_sampler": lambda: H5DataLoader(dataset, batch_sampler=batches(), threads=1),
        "h5_shuffle": lambda: H5DataLoader(dataset, batch_size=BATCH, shuffle=True),
        "optimized": optimized,
        "factory": lambda: factory(num_workers=0),
        "factory_workers": lambda: factory(num_workers=2),
        "factory_sampler": lambda: factory(num_workers=0, sampler=order()),
        "factory_batch_sampler": lambda: factory(num_workers=0, batch_sampler=batches()),
        "shuffle": lambda: DataLoader(dataset, batch_size=BATCH, shuffle=True),
    }


def own_shard():
    """A loader of a rank's own shard, which there is once the ranks are known."""
    shard = Shard(FILE, x_key="row", y_key="row")
    return DataLoader(shard, batch_size=BATCH, sampler=EpochShuffleSampler(len(shard), seed=3))


def with_ranks():
    dataset = H5Dataset(FILE)
    rank = int(os.environ["RANK"])
    return DataLoader(dataset, batch_size=BATCH, sampler=OrderSampler(dataset, rank=rank, world_size=2))


def rows_of(batch):
    return batch["row"].int().flatten().tolist()


class Cases:
    """Runs cases, and notes what each one saw: rows by epoch, or an error, which both ranks have."""

    def __init__(self):
        self.seen = {}

    def run(self, name, case, *arguments, **options):
        try:
            self.seen[name] = case(*arguments, **options)
        except Exception as exc:  # noqa: BLE001  whatever it is, the test shows it
            self.seen[name] = f"{type(exc).__name__}: {exc}"
            (FOLDER / f"{name.replace('/', '_')}_{os.environ['RANK']}.txt").write_text(traceback.format_exc())


class Lightning(Cases):
    def __init__(self):
        super().__init__()
        self.pl = importlib.import_module(FRAMEWORK)

    def trainer(self, **options):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "max_epochs": 2}
        quiet |= {"enable_checkpointing": False, "default_root_dir": FOLDER, "limit_val_batches": 0}
        return self.pl.Trainer(accelerator="cpu", strategy="ddp", devices=2, **quiet | options)

    def module(self):
        return lightning_module(self.pl)()

    def data(self, make):
        data = self.pl.LightningDataModule()
        data.train_dataloader = data.val_dataloader = data.predict_dataloader = make
        return data

    def fit(self, *loaders, options=None, **how):
        model = self.module()
        self.trainer(**options or {}).fit(model, *loaders, **how)
        return [model.seen[epoch] for epoch in sorted(model.seen)]

    def fit_inside(self, make, **options):
        return self.fit(datamodule=self.data(make), options=options)

    def validate(self, make):
        model = self.module()
        self.trainer(limit_val_batches=1.0).validate(model, datamodule=self.data(make), verbose=False)
        return [model.validated]

    def predict(self, make):
        batches = self.trainer().predict(self.module(), datamodule=self.data(make))
        return [list(itertools.chain.from_iterable(batches))]

    def resume(self, name, make):
        """Return the rows of a second epoch, and those of a run that goes on in its middle."""
        package = {"lightning": "lightning.pytorch"}.get(FRAMEWORK, FRAMEWORK)
        folder = FOLDER / f"checkpoints_{name}"
        save = importlib.import_module(f"{package}.callbacks").ModelCheckpoint(
            dirpath=folder, every_n_train_steps=4, save_top_k=-1
        )
        whole = self.fit(make(), options={"callbacks": [save], "enable_checkpointing": True})
        path = folder / "epoch=1-step=12.ckpt"
        rest = self.fit(make(), ckpt_path=path, weights_only=False)
        return [whole[1], rest[0]]

    def shared(self):
        """Return the state of a batch sampler that was made before, after one epoch."""
        dataset = H5Dataset(FILE)
        sampler = OrderBatchSampler(dataset, BATCH, seed=3)
        sampler.load_state_dict({**sampler.state_dict(), "rows": 128})
        seen = self.fit(DataLoader(dataset, batch_sampler=sampler), options={"max_epochs": 2})
        return [*seen, [sampler.epoch]]

    def run_all(self):
        self.run("resume/loader", self.resume, "loader", makers()["loader"])
        if FRAMEWORK != "lightning":  # the same code by another name
            return
        for name, made in {name: make() for name, make in makers().items()}.items():
            self.run(f"before/{name}", self.fit, made)
        for name, make in (makers() | {"own_shard": own_shard, "with_ranks": with_ranks}).items():
            self.run(f"inside/{name}", self.fit_inside, make)
        for name in ("sampler", "batch_sampler", "loader", "optimized", "shuffle"):
            self.run(f"validate/{name}", self.validate, makers()[name])
        for name in ("sampler_stretch", "batch_sampler", "loader", "h5_batch_sampler", "optimized"):
            self.run(f"predict/{name}", self.predict, makers()[name])
        for name in ("sampler_stretch", "loader"):
            self.run(f"overfit/{name}", self.fit_inside, makers()[name], overfit_batches=4)
        self.run("resume/h5_batch_sampler", self.resume, "h5_batch_sampler", makers()["h5_batch_sampler"])
        self.run("shared", self.shared)


def lightning_module(pl):
    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen, self.validated = {}, []

        def training_step(self, batch, _):
            self.seen.setdefault(self.current_epoch, []).extend(rows_of(batch))
            return self.layer(batch["row"].float().reshape(-1, 1)).square().mean()

        def validation_step(self, batch, _):
            self.validated += rows_of(batch)

        def predict_step(self, batch, _):
            return rows_of(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    return Model


class Accelerate(Cases):
    def epochs(self, made, **config):
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
        made = accelerator.prepare(made() if callable(made) else made)
        expected = len(made)
        batches = [[rows_of(batch) for batch in made] for _ in range(2)]
        assert [len(each) for each in batches] == [expected, expected]
        return [list(itertools.chain.from_iterable(each)) for each in batches]

    def skip(self, make, **config):
        """Return the rows of the end of a second epoch, and those that a loader yields which begins in it."""
        from accelerate import Accelerator, skip_first_batches
        from accelerate.utils import DataLoaderConfiguration

        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
        _, whole = [[rows_of(batch) for batch in made] for made in [accelerator.prepare(make())] for _ in range(2)]
        rest = skip_first_batches(accelerator.prepare(make()), 2)
        rest.set_epoch(1)  # as transformers does it when it resumes
        batches = [rows_of(batch) for batch in rest]
        return [whole[-len(batches) :], batches]

    def unprepared(self, make):
        made, seen = make(), []
        for epoch in range(2):
            (made.batch_sampler if made.batch_size is None else made.sampler).set_epoch(epoch)
            seen.append([row for batch in made for row in rows_of(batch)])
        return seen

    def run_all(self):
        kinds = makers()
        del kinds["batches_as_samples"]  # accelerate does not tell it the epoch
        early = {name: make() for name, make in kinds.items()}
        for name, made in early.items():
            self.run(f"before/{name}", self.epochs, made)
        for name, make in (kinds | {"own_shard": own_shard, "with_ranks": with_ranks}).items():
            self.run(f"inside/{name}", self.epochs, make)
        for name in ("sampler", "batch_sampler", "loader"):
            for option in ("split_batches", "dispatch_batches", "use_stateful_dataloader"):
                self.run(f"{option}/{name}", self.epochs, kinds[name], **{option: True})
            for dispatches in (False, True):
                self.run(f"skip/{name}_{dispatches}", self.skip, kinds[name], dispatch_batches=dispatches)
            self.run(f"uneven/{name}", self.epochs, kinds[name], even_batches=False)
            self.run(f"unprepared/{name}", self.unprepared, kinds[name])
        for name in ("sampler_workers", "batch_sampler_workers"):  # they ask for samples while the loader is prepared
            self.run(f"use_stateful_dataloader/{name}", self.epochs, kinds[name], use_stateful_dataloader=True)


class Docs(Cases):
    """The snippets of docs/frameworks.md, each alone; the loss notes which rows it gets."""

    def run_all(self):
        text = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
        os.chdir(FOLDER)
        for section in text.split("\n## ")[1:]:
            title, _, rest = section.partition("\n")
            if "ray.train" not in title:
                self.run(title, self.rows_of_snippet, rest.split("```python\n")[1].split("```")[0])

    def rows_of_snippet(self, code):
        seen = []

        def loss(logits, target):
            seen.extend(target.tolist())
            return logits.square().mean()

        torch.nn.functional.cross_entropy, before = loss, torch.nn.functional.cross_entropy
        try:
            exec(code, {"__name__": "__main__"})
        finally:
            torch.nn.functional.cross_entropy = before
        return seen


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    cases = {"accelerate": Accelerate, "docs": Docs}.get(FRAMEWORK, Lightning)()
    cases.run_all()
    (FOLDER / f"rank{os.environ['RANK']}.json").write_text(json.dumps(cases.seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
