"""Tests that do not run a second time with their files in an object store, and why. All others do: `through_store`."""

QUICK = {"conformance/test_conformance.py"}
"""Modules whose tests run with their files in a store in each run."""

SLOW = {
    "read/test_varying_values.py": "values that a guard looks at before h5py reads them",
    "hdf5/test_attributes.py": "attributes",
    "hdf5/test_libraries.py": "columns that libraries write, and CF",
    "hdf5/test_opening.py": "files that cannot be opened, or change",
    "read/test_h5py_column.py": "columns that h5py decodes",
    "hdf5/test_chunk_index.py": "each kind of chunk index",
    "read/test_reader_equals_h5py.py": "any rows of any plain column",
    "order/test_plan.py": "blocks of an epoch",
    "index/test_cache.py": "what an index in memory or on a disk says of files that changed",
    "index/test_row_index.py": "planning",
    "index/test_select.py": "columns that a predicate names",
    "rows/test_groups_equal_h5py.py": "groups",
    "rows/test_windows_equal_h5py.py": "windows",
    "torch_data/test_dataset.py": "batches of many files",
    "torch_data/test_workers.py": "workers",
}
"""Modules that run so with ``-m slow``: each way to storage once. All further ones do with ``-m nightly``."""

OTHER_FILES = "a file in a store leads to no path of a disk, and its messages name the other file alone"
PROGRAMS = "it starts programs or clusters, which know nothing of the store"
NO_FILE = "it reads no file"
IN_A_STORE = "it is of files in a store already, or of both"
COUNTS = "it counts reads of a disk"
THE_DISK = "it is of what disks and their file systems do"
NO_WRITERS = "nobody adds rows to an object"
IN_MEMORY = "what is in memory is of the state that was planned; to look at the file again would be a request"
NAMES = "it asks for the path of a file"
FORKS = "a process that was forked after a read from a store cannot read from one"
THE_REPORT = "of files in a store, inspect says more; remote/test_inspect.py has that"
WRITES = "it writes to a disk, and reads that; remote/test_moto.py writes to a store"
BLOCKS = "what Ray does with blocks is the same; remote/test_ray.py has tasks that read from a store"

LOCAL = {
    "cluster/": PROGRAMS,
    "docs/": PROGRAMS,
    "training_runs/": "its files are written, moved and removed on a disk",
    "golden/": "orders do not depend on where files are; remote/ compares both",
    "examples/": PROGRAMS,
    "fuzz/": "processes of their own read the files; read/remote/test_damage.py damages files in a store",
    "read/test_source_guard.py": OTHER_FILES,
    "codecs/test_filters.py": NO_FILE,
    "transforms/test_decode_image.py": NO_FILE,
    "hdf5/test_links.py": OTHER_FILES,
    "hdf5/test_known_headers.py": THE_DISK,
    "read/test_chunks_counted.py": COUNTS,
    "read/native/": NO_FILE,
    "rows/test_whole_datasets.py": COUNTS,
    "rows/test_row_reader.py": "files in stores have a reader of another type",
    "loading/test_together.py": COUNTS,
    "torch_data/test_held_chunks.py": "chunks of files in stores are not held",
    "read/test_memory.py": PROGRAMS,
    "read/remote/": IN_A_STORE,
    "writing/test_copying.py": WRITES,
    "hdf5/test_exit.py": PROGRAMS,
    "writing/test_output.py": WRITES,
    "ray_data/test_datasink.py": WRITES,
    "ray_data/test_write_h5.py": WRITES,
    "writing/": WRITES,
    "read/test_swmr.py": NO_WRITERS,
    "integration/": PROGRAMS,
    "order/test_memory.py": PROGRAMS,
    "order/test_shuffle.py": NO_FILE,
    "index/test_sources.py": OTHER_FILES,
    "index/test_lookup.py": NO_FILE,
    "predicates/test_comparisons.py": NO_FILE,
    "predicates/test_words.py": NO_FILE,
    "rows/test_composition.py": IN_A_STORE,
    "likely_rows/": NO_FILE,
    "layouts/": "what is printed is the same for files in stores, and ran there by the tests of each form",
    "storage/test_find_files.py": "folders and globs of a disk; torch_data/test_remote.py has those of stores",
    "ray_data/epochs/": BLOCKS,
    "ray_data/files/test_file_options.py": OTHER_FILES,
    "ray_data/files/test_sources.py": OTHER_FILES,
    "ray_data/preprocessing/": BLOCKS,
    "ray_data/test_arguments.py": NO_FILE,
    "ray_data/test_quiet.py": NO_FILE,
    "ray_data/test_remote.py": IN_A_STORE,
    "ray_data/training/": BLOCKS,
    "remote/": IN_A_STORE,
    "storage/": "each kind of storage has tests of its own",
    "test_bench": "benches write the files that they read",
    "test_log.py": PROGRAMS,
    "test_lru.py": NO_FILE,
    "test_package.py": NO_FILE,
    "test_plots.py": NO_FILE,
    "compat/test_factory.py": NO_FILE,
    "torch_data/test_names.py": NO_FILE,
    "torch_data/test_remote.py": IN_A_STORE,
    "torch_data/test_sources.py": OTHER_FILES,
    "transforms/": NO_FILE,
}
"""Modules, and folders, of which no test runs with its files in a store, and why. All others do."""

_CORPUS = "conformance/test_conformance.py::test_corpus"
_OPENING = "hdf5/test_opening.py::"
_H5PY_COLUMN = "read/test_h5py_column.py::"

ON_DISK = {
    f"{_CORPUS}[external storage, allowed]": OTHER_FILES,
    f"{_CORPUS}[external storage, outside]": OTHER_FILES,
    "read/test_chunk_guard.py::test_a_guard_looks_anew_while_a_writer_has_the_file": NO_WRITERS,
    "read/test_varying_values.py::test_files_of_all_kinds": OTHER_FILES,
    "read/test_varying_values.py::test_small_claims_are_named_too": OTHER_FILES,
    "read/test_varying_values.py::test_whole_values_are_read_as_h5py_reads_them": OTHER_FILES,
    f"{_OPENING}test_expected_state": THE_DISK,
    f"{_OPENING}test_file_systems_without_locks": THE_DISK,
    f"{_OPENING}test_file_that_is_replaced_between_two_tries": THE_DISK,
    f"{_OPENING}test_file_that_may_not_be_read": FORKS,
    f"{_OPENING}test_live_writer": NO_WRITERS,
    f"{_OPENING}test_no_descriptor_left": FORKS,
    f"{_OPENING}test_opening_that_fails_for_a_while": THE_DISK,
    f"{_OPENING}test_other_errors_are_not_tried_again": THE_DISK,
    f"{_OPENING}test_paths_that_are_no_hdf5_file": THE_DISK,
    f"{_OPENING}test_paths_that_lead_nowhere_are_not_called_damaged": THE_DISK,
    f"{_OPENING}test_reads_that_fail_for_a_while": THE_DISK,
    f"{_OPENING}test_reads_that_fail_for_good": THE_DISK,
    f"{_OPENING}test_relative_paths_outlive_a_change_of_folder": NAMES,
    f"{_OPENING}test_writer_that_died": "the advice is to copy the file there again",
    f"{_H5PY_COLUMN}test_sources_that_are_not_what_a_virtual_column_says_are_named": OTHER_FILES,
    f"{_H5PY_COLUMN}test_the_message_names_the_rows_that_are_damaged": OTHER_FILES,
    "read/test_large_rows.py::test_requests_and_bytes_are_those_of_the_rows": COUNTS,
    "read/test_ranges.py::test_calls_of_a_whole_column": COUNTS,
    "hdf5/test_hostile.py::test_a_counted_source_that_is_a_pipe_is_not_opened": OTHER_FILES,
    "hdf5/test_hostile.py::test_sources_outside_are_not_opened": OTHER_FILES,
    "hdf5/test_hostile.py::test_control_characters_of_paths_reach_no_message_and_no_repr": NAMES,
    "hdf5/test_hostile.py::test_groups_deeper_than_is_listed": "it counts one look at a group; replays look again",
    "hdf5/test_hostile.py::test_more_files_than_descriptors": THE_DISK,
    "read/test_file_cache.py::test_a_thread_lets_go_of_the_file_meanwhile": THE_DISK,
    "read/test_file_cache.py::test_fork": FORKS,
    "read/test_file_cache.py::test_fork_does_not_wait_for_locks_of_the_parent": FORKS,
    "read/test_file_cache.py::test_fork_while_the_parent_reads_on": FORKS,
    "read/test_file_cache.py::test_no_more_files_stay_open_than_said": THE_DISK,
    "read/test_file_cache.py::test_pickled_reader_remembers_what_it_expects": IN_MEMORY,
    "read/test_selections.py::test_a_chunk_is_decoded_once_for_several_fields": COUNTS,
    "read/test_selections.py::test_only_their_chunks_are_read": COUNTS,
    "rows/test_stacks_equal_h5py.py::test_other_mappings": COUNTS,
    "rows/test_stacks_equal_h5py.py::test_stacks": COUNTS,
    "order/test_draws.py::test_shares_by_file": NAMES,
    "index/test_cache.py::test_a_url_that_has_lost_a_slash_is_named": NAMES,
    "index/test_cache.py::test_facts_of_every_kind_of_column_are_kept": NAMES,
    "index/test_cache.py::test_memory_holds_no_more_than_it_counts": "it counts all bytes of Arrow in the process",
    "index/test_cache.py::test_what_an_index_says_wrongly_is_an_error": "the index is made for the paths of the disk",
    "index/test_cache.py::test_values_are_not_read_for_rows_that_only_an_index_has": "the index is made for paths",
    "hdf5/test_opening.py::test_the_first_part_of_a_family_of_files_is_named": OTHER_FILES,
    "read/test_h5py_column.py::test_grid_rows_of_virtual_datasets": OTHER_FILES,
    "read/test_h5py_column.py::test_few_grid_rows_take_little_memory": OTHER_FILES,
    "index/test_cache.py::test_what_cannot_be_trusted_is_made_anew": "the index is on the disk, whatever it is of",
    "index/test_cache.py::test_two_processes_that_save_at_one_time_keep_the_facts_of_both": NAMES,
    "index/test_cache.py::test_threads_that_plan_at_one_time_do_not_disturb_each_other": NAMES,
    "index/test_row_index.py::test_names_of_files_need_not_be_utf8": "keys of stores are UTF-8",
    "index/test_row_index.py::test_threads_share_an_index": OTHER_FILES,
    "rows/test_named_columns.py::test_parts_of_one_dataset_decode_each_chunk_once": COUNTS,
    "rows/test_patches_equal_h5py.py::test_arrays_of_compound_values_have_their_fields_as_columns": COUNTS,
    "rows/test_patches_of_groups.py::test_blocks_of_groups_equal_h5py": IN_A_STORE,
    "rows/test_patches_of_groups.py::test_each_chunk_of_each_group_is_decoded_once": COUNTS,
    "rows/test_row_parts.py::test_channels_in_chunks_of_their_own_read_their_bytes_alone": COUNTS,
    "rows/test_row_parts.py::test_names_are_read_once": COUNTS,
    "rows/test_row_parts.py::test_rows_that_are_whole_datasets_read_what_is_asked_for": COUNTS,
    "rows/test_ranges_equal_numpy.py::test_matrices_of_groups_are_listed_and_read_their_entries_alone": COUNTS,
    "rows/test_bad_rows.py::test_bad_input_is_named_while_planning": "one child plans all of its files",
    "ray_data/test_read_h5.py::test_local_paths_are_read_on_the_drivers_node": THE_DISK,
    "ray_data/test_read_h5.py::test_paths_row_ids_and_order_of_files": NAMES,
    "ray_data/test_read_h5.py::test_the_files_are_told": NAMES,
    "ray_data/test_tasks.py::test_a_file_missing_on_a_node_says_where_and_what_to_mount": THE_DISK,
    "ray_data/test_tasks.py::test_an_epoch_begins_once_ray_knows_its_resources": "it takes time, and counts tasks",
    "test_cli.py::test_errors_name_the_flags_of_options": OTHER_FILES,
    "test_cli.py::test_repack_writes_and_prints_what_it_gained": WRITES,
    "test_inspect.py::test_a_column_that_is_named_has_a_line_of_its_own": THE_REPORT,
    "test_inspect.py::test_columns_beside_others_of_another_length": THE_REPORT,
    "test_inspect.py::test_groups_that_are_alike_are_one": OTHER_FILES,
    "test_inspect.py::test_many_columns": THE_REPORT,
    "test_inspect.py::test_several_files": NAMES,
    "test_inspect.py::test_such_names_are_escaped_wherever_they_are_said": "such names are refused in a store",
    "test_inspect.py::test_text": NAMES,
    "compat/test_lazy.py::test_a_live_writer_in_swmr_mode": NO_WRITERS,
    "torch_data/test_dataset.py::test_bad_input[options8-OptionError-cache_bytes: .*for files in stores]": THE_DISK,
    "torch_data/test_dataset.py::test_ending_an_epoch_early_leaves_no_thread": "threads that fetch stay",
    "torch_data/test_dataset.py::test_a_dataset_that_is_closed_has_no_files_open": THE_DISK,
    "torch_data/test_dataset.py::test_processes_of_the_optimized_loader_advance_too": FORKS,
    "torch_data/test_many_columns.py::test_the_cost_grows_with_the_number_of_columns_and_not_with_its_square": COUNTS,
    "torch_data/test_padding.py::test_rows_are_padded_after_a_transform": "workers that are not forked take no lambda",
    "torch_data/test_sparse_loaders.py::test_a_window_decodes_its_chunks_once": COUNTS,
    "torch_data/test_dataset.py::test_origins_are_files_and_rows_there": NAMES,
    "index/test_row_index.py::test_links_that_lead_nowhere_are_named_and_the_rest_is_read": OTHER_FILES,
    "torch_data/test_workers.py::test_a_fork_disturbs_no_iteration": FORKS,
    "torch_data/test_workers.py::test_all_start_methods_deliver_the_same[fork]": FORKS,
    "torch_data/test_workers.py::test_the_functions_that_collate_samples_can_be_sent_to_a_worker[fork]": FORKS,
}
"""Tests that do not run with their files in a store, by module and name, and why."""


def why_on_disk(module, test):
    """Return why a test does not run with its files in a store; "" if it does."""
    if any(test.get_closest_marker(each) for each in ("slow", "nightly")):
        return "it starts clusters or programs, or takes minutes"
    if "disk" in test.fixturenames:
        return "it counts reads of a disk, or lets them wait"
    found = next((why for place, why in LOCAL.items() if module.startswith(place)), "")
    return found or ON_DISK.get(f"{module}::{test.originalname}", "")
