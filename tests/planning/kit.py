from hypothesis import strategies as st

from ray_h5.planning.epoch.plan import make_plan
from ray_h5.planning.files import FileOptions
from ray_h5.planning.index.cache import check_index_dir
from ray_h5.planning.index.scope import Scope
from ray_h5.planning.index.select import select
from ray_h5.planning.predicates.evaluate import as_expression
from ray_h5.planning.schema import Cast


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
    folder = None if index_dir is None else check_index_dir(index_dir)
    files = FileOptions(paths, Scope.of("/", allow_external, threads), folder, Cast(dtypes or {}, casting), False)
    index = files.index(columns)
    specs = index.delivered
    selection = None if predicate is None else select(index, specs, as_expression(predicate))
    return index, make_plan(index, [specs[name] for name in index.columns], selection, shuffle, block_rows)


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
