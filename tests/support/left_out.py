"""Tests of which ``make test`` runs no case: of each file their names without ``test_``.

What they try is tried by other tests of their files in fewer ways, or is no part of what computes.
"""

from collections.abc import Mapping
from typing import Final

LEFT_OUT: Final[Mapping[str, str]] = {
    "lower/test_residues.py": "loops_around_and_inside_the_classes",
    "lower/test_winograd.py": (
        "weights_that_24_divides_twice_give_exact_results every_subset_of_the_epilogue"
    ),
    "cli/test_calibrating.py": "another_type_is_told_as_well",
    "cli/test_cli.py": (
        "exported_code_builds_and_tests_itself wisdom_travels a_closed_pipe_is_quiet "
        "check_prints_lines_that_reproduce_themselves"
    ),
    "cli/test_cli_rank.py": "measured_choices_are_scored",
    "cli/test_cli_types.py": (
        "explain_counts_the_bytes_of_the_types explain check_prints_a_command_that_repeats_it"
    ),
    "cli/test_faulty_compilers.py": "a_compiler_that_hangs_at_some_texts",
    "lower/direct/test_activations.py": "every_instruction_set",
    "lower/direct/test_operators.py": "schedules_written_by_hand a_fault_in_the_code_is_noticed",
    "examples/test_examples.py": "a_model_learns",
    "experiments/test_calibrations.py": "a_layer_that_fails_does_not_end_the_others",
    "experiments/test_experiments.py": (
        "a_line_that_a_crash_cut_off_is_left_out kinds_of_weight_gradients_are_told_apart"
    ),
    "experiments/test_published_gemm.py": "a_choice_of_register_tile_is_that_of_the_larger_one",
    "experiments/test_scaling.py": "a_bad_machine_is_one_line",
    "explain/test_explain.py": "the_command_draws_one_picture_a_layer",
    "export/test_export.py": "the_header_is_cpp",
    "export/test_export_precisions.py": "a_python_package_computes_the_same",
    "export/test_export_python.py": (
        "compiles_what_does_not_load never_loads_from_a_cache_that_another_can_replace"
    ),
    "export/test_export_units.py": "another_processor_takes_what_it_can where_none_runs",
    "measure/test_faults.py": "samples_are_seconds_a_call",
    "measure/test_measure.py": "an_endless_loop_ends_at_the_time_limit cold_samples",
    "graph/gradients/test_recurrent.py": "single_precision_by_layers",
    "graph/operators/test_fourier.py": "transforms_of_frames",
    "graph/operators/test_rearrange.py": "rearranging_without_fusion",
    "graph/operators/test_sampling.py": "points_keep_their_digits_in_bf16",
    "graph/operators/test_scatter.py": "a_row_fusion_does_not_skip_an_update",
    "network/test_attention.py": "attention_of_three_tensors of_a_mask_that_hides_all_keys_is_0",
    "network/test_branches.py": "what_both_need_is_computed_before",
    "network/test_from_memory.py": "its_name_can_be_chosen",
    "network/test_functions.py": "loops_are_of_whole_vectors",
    "network/test_layer_words.py": "parameters_of_ones_own",
    "network/test_layouts.py": (
        "a_depthwise_layer_between_plain_tensors_is_a_stencil "
        "a_layer_of_few_filters_between_plain_tensors_has_swapped_factors"
    ),
    "network/test_peers.py": "dimensions_are_bound_by_name",
    "network/test_placing.py": (
        "a_residual_beside_two_results rows_that_do_not_run_on rows_of_one_column "
        "a_bias_with_gaps one_stage_ends_one_band"
    ),
    "network/test_projects.py": (
        "large_weights_are_packed_some_columns_at_a_time weights_packed_ahead"
    ),
    "network/test_quantised_recurrent.py": "other_weights_are_real_numbers nothing_to_round",
    "network/test_recurrent.py": (
        "results_that_nothing_asks_for_are_not_computed "
        "weights_that_are_inputs_and_lengths_that_are_known in_bf16 threads_wait_twice_a_step"
    ),
    "network/test_stages.py": "layers_that_share_a_workspace_wait the_digest_is_of_all_constants",
    "network/test_thread_pools.py": "projects",
    "network/test_thread_shares.py": "directions_run_beside_each_other",
    "peers/test_contest.py": "a_peer_may_fail_in_a_later_run peers_named_one_by_one",
    "peers/test_onednn.py": "a_rival",
    "peers/test_peers.py": "bench_times_ours_where_the_peer_lacks_the_operator",
    "project/test_pickle.py": "another_process_computes_the_same",
    "cost/test_packages.py": "a_fault_of_an_installed_ranker_names_its_package",
    "cost/test_published.py": "padding_makes_nothing_larger",
    "cost/test_rank.py": "estimates_are_finite_and_no_part_is_negative",
    "cost/test_tiles.py": (
        "rounding_stays_feasible every_proposal_can_be_generated a_faster_machine_is_never_slower"
    ),
    "runtime/test_build_faults.py": (
        "a_directory_that_forbids_execution a_precompiled_header_that_vanishes_costs_nothing"
    ),
    "runtime/test_build_hangs.py": (
        "a_slow_network_says_nothing_of_its_layers a_compiler_that_never_goes_on_is_killed "
        "a_compiler_that_hangs_at_the_least_text_is_not_called_again how_long_compilers_may_run"
    ),
    "runtime/test_build_process.py": (
        "a_killed_parent_takes_its_child_along_even_from_a_loop_in_c "
        "a_process_that_left_the_group_does_not_hold_us"
    ),
    "runtime/test_denormals.py": "denormals_are_kept_on_request",
    "space/test_space.py": "the_order_never_changes",
    "space/test_swapped_taps.py": "the_model_swaps_the_factors_where_few_channels_leave_lanes_idle",
    "target/test_header_sets.py": "builds_honour_the_flags_of_each_text",
    "torch/test_experts.py": "blocks_compute_what_eager_does",
    "torch/test_failures.py": "failures_of_inductor",
    "torch/test_hints.py": "graphs_that_learn free_sizes_of_optimize distributed_modules",
    "torch/test_dynamo.py": "recurrent_layers_are_compiled_where_torchdynamo_hands_them_on",
    "torch/test_models.py": (
        "channels_last_and_odd_sizes batches_of_any_size copies_and_files modes_strides_and_threads"
    ),
    "training/test_trainer.py": "the_loss_falls initializers_of_onnx_are_parameters",
    "tune/test_disturbed.py": "again_measures_where_there_is_a_record_and_replaces_it",
    "tune/test_training.py": (
        "microkernels_that_were_not_learned_are_left_to_the_model "
        "a_network_is_not_learned_from_while_it_is_held_out ranking_needs_no_scikit_learn "
        "a_family_is_ranked_as_its_members_are"
    ),
    "tune/test_training_samples.py": (
        "layers_are_grouped_by_network_and_unknown_ones_stand_alone equal_times_teach_nothing"
    ),
    "network/test_network_records.py": (
        "what_a_tuner_found_is_taken_whatever_names_and_moves_by_export "
        "a_record_that_no_longer_works_is_ignored"
    ),
    "network/test_network_tuner.py": (
        "all_individuals_compute_the_same a_network_is_timed_in_a_process_of_its_own "
        "the_state_is_the_same_networks_in_every_process a_layer_that_is_wrong_does_not_win "
        "the_fastest_wins_and_a_second_run_measures_nothing one_that_crashes_falls_out"
    ),
    "tune/test_tuned_search.py": (
        "it_measures_records_and_goes_on crashes_and_hangs_fall_out "
        "records_of_other_sizes_are_seeds reproducible_sums_keep_their_order "
        "it_ends_once_nothing_left_can_win"
    ),
    "tune/test_tune.py": "ctrl_c_before_anything_was_measured_propagates",
}
