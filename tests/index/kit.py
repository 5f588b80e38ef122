import numpy as np
from hypothesis import strategies as st

from ray_h5.index.file_options import FileOptions
from ray_h5.index.stored import index_files
from ray_h5.loading.cursor import Cursor
from ray_h5.plan.blocks import start_of
from ray_h5.plan.read_plan import make_plan
from ray_h5.plan.row_source import read_rows
from ray_h5.predicates.evaluate import as_expression
from ray_h5.scope import Scope
from ray_h5.source import Source
from ray_h5.storage.addresses import is_url
from ray_h5.storage.storage_of_path import storage_for


def plan_files(
    paths,
    *,
    columns=None,
    predicate=None,
    shuffle=None,
    dtypes=None,
    casting="checked",
    allow_external=(),
    index_dir=None,
    block_rows=None,
    threads=1,
):
    """Return the index of some files, and the plan to read their selected rows."""
    folder = None if index_dir is None else index_files.check_index_dir(index_dir)
    storage = storage_for(None, map(str, paths))
    states = {path: storage.check(path) for path in paths if is_url(str(path))}
    source = Source(paths, dtypes=dtypes, casting=casting, allow_external=allow_external)
    scope = Scope.of(source, storage, threads)
    files = FileOptions(source, paths, scope, folder, source.cast, False, states)
    index = files.index(columns)
    specs = index.delivered
    selection = None if predicate is None else index.select(as_expression(predicate))
    return index, make_plan(index, [specs[name] for name in index.columns], selection, shuffle, block_rows)


def resume(plan, position, world_size):
    """Return where the ranks of a plan begin that continue at a position."""
    cursor = Cursor(plan.order, plan.fingerprint)
    cursor.resume(position)
    return cursor.begin(lambda epoch: start_of(plan, epoch, world_size, cursor.order.seed))


def read_all(paths, **options):
    """Return the arrays of all rows of some files."""
    index = FileOptions.of(paths, **options).index()
    plan = make_plan(index, [index.delivered[name] for name in index.names])
    return read_rows(plan, np.arange(plan.num_rows)).arrays


def combined(leaves, max_leaves):
    """Return predicates made of some others by and, or and not."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
        ),
        max_leaves=max_leaves,
    )
