"""Which cases only ``make test-all`` runs: all but a few of the long tests.

A row names a test of a file and the distance between two of its cases that ``make test`` keeps;
0 keeps the first case alone, None keeps none of them. ``*`` stands for the file's other tests.
A test that asks for the measured ``machine`` needs no row: only ``make test-all`` calibrates.
"""

from tests.support.kept_network_cases import NETWORK_CASES

KEPT_EVERY: dict[str, dict[str, int | None]] = {
    "algorithms/test_choice.py": {
        "test_the_commands_know_the_option": None,
        "test_records_of_direct_searches_and_others_stay_apart": None,
        "test_a_direct_search_never_takes_a_winograd_record": None,
        "test_a_check_has_integers_and_a_bound_of_its_own": None,
        "test_every_3x3_layer_of_vgg_has_a_prediction": None,
    },
    "algorithms/test_residues.py": {"test_code_of_the_first_choices_is_right": 0},
    "algorithms/test_third_algorithm.py": {
        "test_a_check_takes_its_integers_and_its_bound": None,
        "test_the_commands_know_it": None,
        "test_a_search_records_and_reuses_its_schedules": None,
    },
    "algorithms/test_winograd.py": {
        "test_exported_layers_pass_their_own_test": None,
        "test_results_are_within_the_bound_between_guard_pages": 0,
        "test_faults_are_noticed": None,
    },
    "codegen/test_activations.py": {
        "test_every_kind_of_code": 5,
        "test_products_of_matrices": 0,
    },
    "codegen/test_moments.py": {"test_moments_are_within_the_bound_and_stay_inside_their_rows": 6},
    "codegen/test_masks.py": {"test_bits_are_exact_and_stay_inside_their_bytes": 6},
    "cli/test_calibrating.py": {"test_calibrating_is_told_once": 0},
    "cli/test_cli.py": {
        "test_optimize_prints_a_table_and_reuses_wisdom": None,
        "test_ctrl_c_keeps_what_was_measured": None,
    },
    "cli/test_cli_compile.py": {
        "test_ctrl_c_keeps_what_was_measured": None,
        "test_errors_that_f32_does_not_explain_are_wrong": None,
        "test_every_tensor_beside_the_reference": None,
        "test_no_peer_in_bf16": None,
        "test_a_comparison": None,
        "test_the_first_wrong_stage_is_named": None,
        "test_json_and_a_file": None,
        "test_a_table_of_stages": None,
    },
    "cli/test_cli_rank.py": {"test_ctrl_c_keeps_what_was_measured": None},
    "cli/test_cli_types.py": {
        "test_a_measured_search_says_how_near_the_peak_it_is": 4,
        "test_measured_results_are_kept_apart": None,
    },
    "cli/test_faulty_compilers.py": {
        "test_doctor_and_a_compiler_that_hangs": 0,
        "test_a_compiler_that_hangs_where_nothing_was_calibrated": None,
        "test_a_library_without_symbols": 0,
        "test_a_compiler_that_hangs": 0,
    },
    "cli/test_isa_cap.py": {
        "test_the_lower_cap_counts": 0,
        "test_an_export_of_several_obeys_the_cap": None,
        "test_the_peak_is_that_of_the_capped_one": None,
        "test_a_better_ones_record_is_neither_taken_nor_tried": None,
        "test_from_python": None,
    },
    "cli/test_newcomer.py": {"test_other_spellings_of_precisions": 0},
    "cli/test_tables.py": {"test_tables_fit_a_pipe": 2},
    "tune/test_reproducible.py": {
        "test_all_threads_give_the_same_bits": 0,
        "test_a_search_stays_in_the_order": None,
    },
    "codegen/test_private_copies.py": {"test_sums_are_right_and_the_same_for_all_threads": 0},
    "codegen/test_codegen.py": {
        "test_strict_compilers_are_content": None,
        "test_copies_leave_much_padding_out": 3,
        "test_the_same_bytes_in_any_process": None,
        "test_golden_hashes_of_resnet50": None,
    },
    "codegen/test_definitions.py": {"test_every_helper_in_a_file_is_used": 4},
    "codegen/test_nest_code.py": {
        "test_the_exported_c_tests_itself": None,
        "test_generated_code_computes_the_nest": 14,
        "test_commands_take_a_file": None,
        "test_the_exported_package": None,
        "test_a_file_to_a_primitive_and_a_record": None,
    },
    "codegen/test_operators.py": {
        "test_random_schedules_are_right": 53,
        "test_the_choice_of_the_model_is_right": 14,
        "test_the_textbook_nest_gives_the_same": 8,
        "test_every_number_of_output_channels_up_to_40": None,
        "test_packing_where_axes_have_one_position": 0,
        "test_streamed_output": 3,
    },
    "codegen/test_precisions.py": {
        "test_words_of_taps_above_each_other": 0,
        "test_words_of_few_channels_hold_several_taps": 0,
        "test_weights_ahead": 0,
        "test_random_schedules_are_right": 53,
        "test_schedules_written_by_hand": None,
        "test_streamed_output": 0,
        "test_narrow_results_are_streamed_in_whole_lines": 6,
    },
    "codegen/test_tile_layers.py": {"test_schedules_of_whole_layers_are_exact": 0},
    "examples/test_examples.py": {
        "test_two_processes_learn_as_one_does": None,
        "test_a_script_checks_its_own_result": 0,
        "test_the_microcontroller_needs_nothing_but_a_compiler": None,
        "test_resnet50_is_written_as_a_model": None,
    },
    "experiments/test_calibrations.py": {
        "test_winners_of_different_calibrations_are_timed_together": None
    },
    "experiments/test_experiments.py": {
        "test_every_ranker_is_scored_or_its_reason_told": None,
        "test_residue_classes_are_predicted_to_be_faster_than_inserted_zeros": None,
        "test_searches_are_timed_and_their_winners_compared": None,
        "test_what_one_knob_decides_is_its_share": None,
        "test_a_perfect_ranker_scores_one_and_a_reversed_one_the_least": None,
    },
    "explain/test_explain.py": {
        "test_the_picture": 0,
        "test_a_tried_schedule_is_shown_with_its_time": None,
    },
    "export/test_export_ends.py": {
        "test_the_self_test_knows_activations": None,
        "test_a_wrong_function_fails": 0,
    },
    "export/test_export.py": {
        "test_c_compiles_without_warnings_and_passes_its_own_test": 0,
        "test_make_check": 0,
        "test_the_self_test_finds_faults": 0,
        "test_the_stack_is_what_the_header_says": None,
        "test_ctest": None,
    },
    "export/test_export_precisions.py": {
        "test_every_instruction_set_passes": None,
        "test_the_self_test_finds_faults": 27,
        "test_several_precisions_in_a_project": None,
        "test_a_python_package_of_several_precisions": None,
        "test_what_may_be_replaced_before_units_are_known": None,
        "test_headers_of_two_projects_are_cpp": None,
    },
    "export/test_export_python.py": {"test_survives_a_damaged_or_shared_cache": None},
    "export/test_export_units.py": {
        "test_every_instruction_set_passes": None,
        "test_the_self_test_finds_faults": None,
        "test_make_and_ctest": None,
        "test_the_next_best_is_taken": None,
        "test_the_same_bytes_whatever_the_order": None,
        "test_layers_of_several_kinds_without_a_choice": None,
        "test_names_leave_room_for_the_units": None,
        "test_a_replaced_object_changes_the_choice": None,
    },
    "measure/test_faults.py": {"test_faults_are_noticed": 0},
    "measure/test_measure.py": {"test_after_a_faulty_candidate_the_next_one_works": 2},
    "measure/test_worker.py": {
        "test_faults_that_kill_the_worker": 6,
        "test_guards": 3,
        "test_plain_loops_pass": 0,
    },
    "microkernels/test_aarch64.py": {
        "test_kernels_are_exact_and_stay_inside_their_operands": 0,
        "*": None,
    },
    "microkernels/test_microkernels.py": {
        "test_kernels_are_exact_and_stay_inside_their_operands": 0,
        "test_every_choice_of_types_computes_and_packs": 0,
        "test_a_faulty_primitive_is_noticed": None,
        "test_gcc_accepts_what_has_a_stand_in": None,
        "test_symbols_of_the_units_are_the_names_of_the_registry": None,
        "test_portable_kernels_under_sanitizers": None,
        "test_clang_accepts_every_choice_of_types": None,
        "test_clang_compiles_the_same_kernels": None,
        "test_products_are_rounded_before_they_are_added": None,
        "test_headers_compile_without_a_warning": 0,
    },
    "microkernels/test_narrow.py": {
        "test_conversions_equal_those_of_numpy": None,
        "test_a_wrong_conversion_is_noticed": None,
    },
    "microkernels/test_tiles.py": {
        "test_emulated_tiles_under_sanitizers": None,
        "*": 0,
        "test_every_register_tile_is_exact_and_stays_inside_its_operands": None,
        "test_a_faulty_step_is_noticed": None,
        "test_real_tiles_compile_without_a_warning": None,
    },
    "models/test_all_layers.py": {
        "test_every_layer_in_some_precision": None,
        "test_resnet_50_as_it_is": None,
    },
    "ops/test_convolution_gradients.py": {
        "test_code_of_the_first_choice_is_right": 40,
        "test_taps_may_be_looped": 0,
        "test_pixels_side_by_side_are_one_run": 0,
    },
    "ops/test_conv3d.py": {"test_code_of_the_first_choice_is_right": 0},
    "ops/test_matmul.py": {"test_code_is_right": 0},
    "peers/test_contest.py": {
        "test_a_peer_that_lacks_the_precision": None,
        "test_all_peers_take_turns": None,
        "test_of_several_runs_the_least_median_of_each_side_counts": None,
    },
    "peers/test_onednn.py": {
        "test_bench_against_it": None,
        "test_onednn_has_other_operators": 6,
        "test_onednn_computes_it": 9,
    },
    "polyhedral/test_footprint.py": {
        "test_no_schedule_moves_less_than_the_lower_bound": 0,
        "test_farther_levels_see_less_traffic": 0,
    },
    "project/test_api.py": {"test_compile_takes_a_precision": 9},
    "project/test_conv2d_call.py": {
        "test_everything_at_once": 0,
        "test_dtypes_of_the_arrays_give_the_precision": 3,
    },
    "project/test_documents.py": {"test_python": 0, "test_the_commands_of_the_readme_run": None},
    "project/test_package.py": {
        "test_installed_it_finds_its_data": None,
        "test_installed_it_optimises_outside_the_checkout": None,
    },
    "project/test_types.py": {"test_users_programs_pass_mypy_strict": None},
    "rank/test_baselines.py": {
        "test_gathered_schedules_cost_what_each_does": 3,
        "test_every_layer_has_a_choice": 3,
    },
    "rank/test_lower_bound.py": {
        "test_a_full_search_discards_only_what_is_slower": None,
        "test_a_bound_of_zero_discards_nothing_and_a_huge_one_all_but_the_first": None,
    },
    "rank/test_packages.py": {"test_an_installed_ranker_chooses": None},
    "rank/test_published.py": {
        "test_the_experiment_ranks_a_file_of_that_form": None,
        "test_the_closed_form_of_a_window_is_exact_as_published_and_bounds_the_rest": None,
    },
    "rank/test_rank.py": {
        "test_a_larger_cache_is_never_slower": 0,
        "test_higher_prices_are_never_cheaper": 12,
        "test_far_levels_matter_when_caches_are_cold": 0,
    },
    "rank/test_shortlist.py": {
        "test_other_kinds_are_each_the_best_of_theirs_and_near": None,
        "test_the_first_choice_is_the_best_of_the_space": 0,
    },
    "rank/test_tiles.py": {
        "test_every_instruction_set_has_proposals": 0,
        "test_every_member_resolves": None,
        "test_a_users_nest_has_proposals_as_well": 4,
        "test_real_sizes_beat_every_lattice": 4,
    },
    "report/test_browser.py": {
        "test_a_plain_page_has_no_fault": None,
        "test_faults_are_noticed": None,
        "test_report_pages": None,
    },
    "runtime/test_backend.py": {"test_an_instruction_set_names_the_backend_of_a_search": None},
    "runtime/test_build_cache.py": {
        "test_sixteen_processes_build_the_same_text": None,
        "test_a_damaged_entry_is_compiled_again_under_a_new_name": 3,
    },
    "runtime/test_build_compiler.py": {
        "test_a_damaged_header_is_made_again": None,
        "test_a_header_cut_short_by_a_kill_is_not_used": None,
    },
    "runtime/test_build_faults.py": {"test_a_full_disk": None},
    "runtime/test_build_library.py": {
        "test_the_openmp_runtime_stays_when_its_last_user_goes": None
    },
    "runtime/test_denormals.py": {"test_a_winograd_layer": None, "*": 0},
    "runtime/test_primitive_types.py": {"test_results_are_the_references": 3},
    "space/test_group_views.py": {
        "test_every_ranker_knows_what_to_do": 4,
        "test_a_wrong_swap_is_noticed": None,
        "test_the_model_takes_the_kernel_without_wasted_lanes": 0,
    },
    "space/test_space.py": {
        "test_every_layer_of_a_network_has_choices": None,
        "test_every_member_nests": None,
    },
    "space/test_stencil_roles.py": {
        "test_any_order_of_loops_is_exact": 0,
        "test_tails_of_pixels_are_exact_between_guard_pages": 0,
        "test_filters_of_any_kind_are_exact": 0,
        "test_random_schedules_are_exact": None,
        "test_every_ranker_orders_stencils": 3,
        "test_a_wrong_kernel_is_noticed": 2,
        "test_the_model_takes_stencils_where_pixels_are_neighbours": 2,
    },
    "space/test_swapped_roles.py": {
        "test_every_tail_of_pixels_is_exact_between_guard_pages": 27,
        "test_random_schedules_are_exact": None,
        "test_every_ranker_orders_swapped_schedules": 3,
    },
    "space/test_swapped_taps.py": {
        "test_every_row_length_is_exact_between_guard_pages": 0,
        "test_every_kind_of_filter_is_exact": 0,
        "test_copies_in_blocks_and_reads_in_place_are_exact": None,
        "test_random_schedules_are_exact": 0,
        "test_a_wrong_gap_zero_or_tap_is_noticed": None,
    },
    "target/test_feature_sets.py": {"test_a_search_chooses_what_runs": 5},
    "target/test_header_sets.py": {
        "test_strict_compilers_take_units": None,
        "test_the_interface_is_the_one_that_is_loaded": 0,
    },
    "target/test_machine.py": {
        "test_probes_of_every_precision_compile": 0,
        "test_a_calibration_of_a_few_kernels": None,
    },
    "target/test_packages.py": {
        "test_its_kernels_compute_with_the_flag_of_its_row": None,
        "test_an_exported_package_builds_with_the_flag": None,
        "test_exported_projects_know_the_flag": None,
    },
    "tune/test_calibrate.py": {"test_a_neighbour_changes_no_rate": None},
    "tune/test_disturbed.py": {
        "test_a_machine_that_stays_busy_leaves_a_mark_and_no_lasting_choice": None,
        "test_parallel_candidates_that_are_all_slow_are_timed_again": None,
    },
    "torch/test_operators.py": {
        "test_results_and_gradients_of_integers_are_exact": 9,
        "test_any_memory_is_read": 4,
        "test_second_gradients": None,
        "test_narrow_types": 0,
        "test_opcheck": 5,
    },
    "torch/test_quantised.py": {
        "test_optimized_modules_have_layers_of_8_bits": 3,
        "test_the_backend_of_torch_compile_takes_them": None,
    },
    "torch/test_recurrent.py": {"test_results_and_gradients": 0},
    "torch/test_tensors.py": {
        "test_changed_weights_are_packed_again": 3,
        "test_a_child_of_fork": None,
        "test_compiled_by_pytorch_without_a_break": None,
        "test_no_images": None,
        "test_hooks_and_retained_gradients": None,
    },
    "training/test_moments.py": {
        "test_steps_are_those_with_passes": None,
        "test_reproducible_steps_take_passes": None,
    },
    "training/test_masks.py": {"test_masks_change_no_bit_of_what_is_learned": None},
    "training/test_torch.py": {"test_ten_steps": 0},
    "training/test_trainer.py": {
        "test_a_convolutional_network_learns": None,
        "test_batch_statistics_of_onnx_models": 0,
        "test_bf16_learns_as_f32_does": None,
        "test_reproducible_steps": None,
        "test_gradients_are_limited_together": None,
    },
    "tune/test_few_cores.py": {"test_two_threads_on_one_cpu": None},
    "tune/test_fit.py": {"test_the_layers_exercise_every_price": None},
    "tune/test_training.py": {
        "test_networks_held_out_are_ordered_better_than_by_the_model": None,
        "test_weights_of_other_features_are_refused": None,
    },
    "tune/test_training_samples.py": {
        "test_the_command_trains_and_its_weights_are_used": None,
        "test_one_network_alone_is_learned_and_not_judged": None,
        "test_the_command_tells_json": None,
    },
    "tune/test_tune.py": {
        "test_measure_tries_the_best_few_and_remembers": None,
        "test_no_candidate_survives": None,
        "test_two_threads": None,
        "test_ctrl_c_keeps_what_was_measured": None,
        "test_weights_of_many_megabytes_are_timed": None,
        "test_a_candidate_that_fails_at_last_does_not_win": None,
        "test_faulty_candidates_fall_out": None,
    },
    "tune/test_wisdom.py": {"test_a_writer_killed_halfway_is_rolled_back_by_the_next_reader": None},
    "cli/test_cli_records.py": {"test_explain_marks_a_disturbed_record": 0},
    "border/test_streams.py": {
        "test_a_command_without_standard_error_prints_its_table": 0,
        "test_a_command_without_standard_output_succeeds_silently": 0,
    },
    "codegen/test_hilbert.py": {"test_code_is_right": 0},
    "space/test_plain_factor.py": {"test_code_is_right": 0, "test_dots_are_right": 5},
    "space/test_packed_parts.py": {"test_code_is_right": 7},
    "runtime/test_primitive.py": {"test_results_are_the_references": 0},
    **NETWORK_CASES,
    "torch/test_dynamo.py": {
        "test_models_compute_what_eager_does": None,
        "test_graphs_without_parts_go_to_inductor": None,
    },
    "torch/test_training.py": dict.fromkeys(
        ("test_models_learn_as_in_eager", "test_uses", "test_each_free_size_is_compiled_once")
    ),
    "torch/test_models.py": {"test_models_are_one_part_that_computes_what_eager_does": 0},
    "torch/test_optimize.py": {
        "test_bf16_is_allowed": None,
        "test_slower_modules_are_left_to_eager": None,
    },
}
