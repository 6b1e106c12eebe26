//! The planner by example.

mod common;

use common::{GIB, MIB, device, layout, machine, model, paced, reason, wish};
use skein_planner::{Candidate, Footprint, Held, ModelShape, Reason, Refusal, Standing, plan};

/// Bytes that a stage over `[start, end)` takes with everything.
fn takes(model: &ModelShape, start: u32, end: u32) -> u64 {
    Footprint::of(model, &(start..end), 4_096).total()
}

#[test]
fn a_model_that_fits_on_the_asker_stays_there() {
    let fleet = [machine("a", 64 * GIB), machine("b", 64 * GIB)];
    let plan = plan(&model(28, 30), &fleet, &wish(4_096, None, "b")).unwrap();
    assert_eq!(layout(&plan), [("b", 0, 28)]);
    assert!(
        reason(&plan, "a").contains("with it"),
        "{}",
        reason(&plan, "a")
    );
}

#[test]
fn a_much_faster_machine_nearby_takes_the_whole_model_from_the_asker() {
    let fleet = [machine("a", 64 * GIB), paced(machine("b", 64 * GIB), 200)];
    let plan = plan(&model(28, 30), &fleet, &wish(4_096, None, "a")).unwrap();
    assert_eq!(layout(&plan), [("b", 0, 28)]);
}

#[test]
fn equal_machines_share_the_layers_evenly_when_a_line_is_asked_for() {
    let mut shape = model(30, 50);
    shape.head_bytes = 0;
    let fleet = ["a", "b", "c"].map(|peer| machine(peer, 64 * GIB));
    let plan = plan(&shape, &fleet, &wish(4_096, Some(3), "a")).unwrap();
    assert_eq!(layout(&plan), [("a", 0, 10), ("b", 10, 20), ("c", 20, 30)]);
}

#[test]
fn small_differences_of_measured_speed_do_not_upset_the_balance() {
    let mut shape = model(30, 50);
    shape.head_bytes = 0;
    let mut fleet = ["a", "b", "c"].map(|peer| machine(peer, 64 * GIB));
    fleet[1].devices[0].bytes_per_s = 20_400_000_000;
    fleet[2].devices[0].bytes_per_s = 19_700_000_000;
    let plan = plan(&shape, &fleet, &wish(4_096, Some(3), "a")).unwrap();
    for stage in &plan.stages {
        assert_eq!(stage.layers.end - stage.layers.start, 10);
    }
}

#[test]
fn a_machine_of_half_the_speed_gets_about_half_the_layers() {
    let mut shape = model(30, 50);
    shape.head_bytes = 0;
    // So little room that neither can carry much more than its share.
    let room = takes(&shape, 0, 22);
    let fleet = [machine("a", room), paced(machine("b", room), 10)];
    let plan = plan(&shape, &fleet, &wish(4_096, None, "a")).unwrap();
    assert_eq!(layout(&plan)[0].0, "a");
    let first = layout(&plan)[0].2;
    assert!((20..=22).contains(&first), "{first} layers on the faster");
}

#[test]
fn lm_head_counts_as_work_of_the_tail() {
    let mut shape = model(20, 50);
    shape.head_bytes = 250 * MIB;
    let fleet = [machine("a", 64 * GIB), machine("b", 64 * GIB)];
    let plan = plan(&shape, &fleet, &wish(4_096, Some(2), "a")).unwrap();
    // 20 layers and a head of five layers: 12 or 13 units each.
    assert!(
        matches!(layout(&plan)[0], ("a", 0, 12 | 13)),
        "{:?}",
        layout(&plan)
    );
}

#[test]
fn a_tied_embedding_is_held_by_both_ends_and_once_by_a_single_machine() {
    let mut shape = model(4, 10);
    shape.tied = true;
    shape.head_bytes = MIB;
    assert_eq!(shape.weights_bytes(&(0..2)), 120 * MIB);
    assert_eq!(shape.weights_bytes(&(2..4)), 121 * MIB);
    assert_eq!(shape.weights_bytes(&(0..4)), 141 * MIB);
    assert_eq!(shape.weights_bytes(&(1..3)), 20 * MIB);
}

#[test]
fn the_smallest_number_of_machines_that_fits_is_used() {
    let shape = model(28, 100);
    let room = takes(&shape, 0, 15);
    let fleet = ["a", "b", "c", "d"].map(|peer| machine(peer, room));
    let plan = plan(&shape, &fleet, &wish(4_096, None, "c")).unwrap();
    assert_eq!(plan.stages.len(), 2);
    assert_eq!(plan.stages[0].peer, "c");
    assert_eq!(plan.left_out.len(), 2);
}

#[test]
fn one_byte_less_needs_one_machine_more() {
    let shape = model(28, 100);
    let whole = takes(&shape, 0, 28);
    let fleet = |room: u64| [machine("a", room), machine("b", room)];
    let with = |room: u64| plan(&shape, &fleet(room), &wish(4_096, None, "a")).unwrap();
    assert_eq!(with(whole).stages.len(), 1);
    assert_eq!(with(whole - 1).stages.len(), 2);
}

#[test]
fn the_pool_bounds_a_device_and_the_device_bounds_the_pool() {
    let shape = model(28, 100);
    let whole = takes(&shape, 0, 28);
    let mut small_pool = machine("a", whole);
    small_pool.memory_free = whole - 1;
    let mut small_device = machine("a", whole);
    small_device.devices[0].memory_free = whole - 1;
    for candidate in [small_pool, small_device] {
        let refusal = plan(&shape, &[candidate], &wish(4_096, None, "a")).unwrap_err();
        assert!(
            matches!(
                refusal,
                Refusal::DoesNotFit {
                    missing_bytes: 1,
                    machines: 1,
                    ..
                }
            ),
            "{refusal:?}"
        );
    }
}

#[test]
fn a_refusal_says_how_many_bytes_are_missing_and_what_helps() {
    let shape = model(28, 100);
    let fleet = [
        machine("a", GIB),
        machine("b", GIB),
        Candidate {
            standing: Standing::Unavailable {
                reason: "on-battery".to_owned(),
            },
            ..machine("c", 64 * GIB)
        },
    ];
    let refusal = plan(&shape, &fleet, &wish(4_096, None, "a")).unwrap_err();
    let Refusal::DoesNotFit {
        missing_bytes,
        machines,
        usable,
        left_out,
    } = &refusal
    else {
        panic!("{refusal:?}")
    };
    // Two stages share the layers; both have the runtime, one the embedding, one the head.
    let sum: u64 = takes(&shape, 0, 14) + takes(&shape, 14, 28);
    assert!(missing_bytes.abs_diff(sum - 2 * GIB) < 4, "{missing_bytes}");
    assert_eq!((*machines, *usable, left_out.len()), (2, 2, 3));
    assert!(
        refusal.to_string().contains("missing on 2 machines"),
        "{refusal}"
    );
    assert!(
        refusal
            .hint()
            .contains("c-name is not available now: on-battery")
    );
}

#[test]
fn a_longer_context_can_be_what_does_not_fit() {
    let mut shape = model(28, 10);
    shape.kv_bytes_per_token_per_layer = 4_096;
    let fleet = [machine("a", GIB)];
    assert!(plan(&shape, &fleet, &wish(512, None, "a")).is_ok());
    assert!(matches!(
        plan(&shape, &fleet, &wish(32_768, None, "a")),
        Err(Refusal::DoesNotFit { .. })
    ));
}

#[test]
fn a_paused_peer_is_left_out_with_its_own_reason() {
    let mut fleet = [machine("a", 64 * GIB), machine("b", 64 * GIB)];
    fleet[1].standing = Standing::Unavailable {
        reason: "user-active".to_owned(),
    };
    let plan = plan(&model(4, 10), &fleet, &wish(64, None, "a")).unwrap();
    assert_eq!(reason(&plan, "b"), "it is not available: user-active");
}

#[test]
fn an_older_generation_is_left_out_and_named() {
    let mut fleet = [machine("a", 64 * GIB), machine("b", 64 * GIB)];
    fleet[1].standing = Standing::OtherGeneration { theirs: 1, ours: 2 };
    let plan = plan(&model(4, 10), &fleet, &wish(64, None, "a")).unwrap();
    assert!(reason(&plan, "b").contains("older generation"));
}

#[test]
fn a_peer_without_a_device_is_left_out_for_that() {
    let mut fleet = [machine("a", 64 * GIB), machine("b", 64 * GIB)];
    fleet[1].devices.clear();
    let plan = plan(&model(4, 10), &fleet, &wish(64, None, "a")).unwrap();
    assert_eq!(plan.left_out[0].reason, Reason::NoUsableDevice);
}

#[test]
fn a_peer_too_small_for_one_layer_is_left_out_with_both_figures() {
    let shape = model(4, 100);
    let fleet = [machine("a", 64 * GIB), machine("b", 50 * MIB)];
    let plan = plan(&shape, &fleet, &wish(4_096, None, "a")).unwrap();
    assert_eq!(
        plan.left_out[0].reason,
        Reason::NotEnoughMemory {
            free: 50 * MIB,
            needed: takes(&shape, 1, 2)
        }
    );
}

#[test]
fn a_full_disk_keeps_a_peer_out_unless_it_holds_the_segments() {
    let shape = model(4, 100);
    let mut fleet = [machine("a", 64 * GIB), machine("b", 64 * GIB)];
    fleet[1].disk_free = 0;
    let without = plan(&shape, &fleet, &wish(64, None, "a")).unwrap();
    assert_eq!(
        without.left_out[0].reason,
        Reason::NotEnoughDisk {
            free: 0,
            needed: 100 * MIB
        }
    );
    fleet[1].held = Held::everything(4);
    let with = plan(&shape, &fleet, &wish(64, Some(2), "a")).unwrap();
    assert_eq!(with.stages.len(), 2);
}

#[test]
fn among_equals_the_peer_that_holds_the_segments_is_taken() {
    let mut shape = model(30, 50);
    shape.head_bytes = 0;
    let mut fleet = ["a", "b", "c"].map(|peer| machine(peer, 64 * GIB));
    fleet[2].held = Held::everything(30);
    let plan = plan(&shape, &fleet, &wish(64, Some(2), "a")).unwrap();
    assert_eq!(layout(&plan), [("a", 0, 15), ("c", 15, 30)]);
}

#[test]
fn the_nearer_of_two_equal_peers_is_taken_and_the_other_is_called_slower() {
    let shape = model(30, 50);
    let mut fleet = ["a", "b", "c"].map(|peer| machine(peer, 64 * GIB));
    fleet[0].rtt_ms = 0.0;
    fleet[1].rtt_ms = 80.0;
    let plan = plan(&shape, &fleet, &wish(64, Some(2), "a")).unwrap();
    assert_eq!(plan.stages[1].peer, "c");
    assert!(matches!(
        plan.left_out[0].reason,
        Reason::Slower { with_ms, without_ms } if with_ms > without_ms + 70.0
    ));
}

#[test]
fn a_stage_runs_on_the_faster_device_unless_only_the_slower_one_has_room() {
    let shape = model(28, 100);
    let whole = takes(&shape, 0, 28);
    let mut candidate = machine("a", 64 * GIB);
    candidate.devices.push(device("GPU", 64 * GIB, 90));
    let on = |candidate: &Candidate| {
        let fleet = std::slice::from_ref(candidate);
        let plan = plan(&shape, fleet, &wish(4_096, None, "a")).unwrap();
        plan.stages[0].device.clone()
    };
    assert_eq!(on(&candidate), "GPU");
    candidate.devices[1].memory_free = whole - 1;
    assert_eq!(on(&candidate), "CPU");
}

#[test]
fn a_device_that_was_never_measured_is_used_last() {
    let mut candidate = machine("a", 64 * GIB);
    candidate.devices.push(device("GPU", 64 * GIB, 0));
    let plan = plan(&model(4, 10), &[candidate], &wish(64, None, "a")).unwrap();
    assert_eq!(plan.stages[0].device, "CPU");
}

#[test]
fn more_stages_than_peers_are_refused_with_both_numbers() {
    let fleet = [machine("a", GIB), machine("b", GIB)];
    let refusal = plan(&model(4, 10), &fleet, &wish(64, Some(3), "a")).unwrap_err();
    assert!(matches!(
        refusal,
        Refusal::TooFewPeers {
            wanted: 3,
            usable: 2,
            ..
        }
    ));
    assert_eq!(refusal.to_string(), "3 machines asked for, 2 can take part");
}

#[test]
fn a_hint_never_asks_for_a_line_of_no_machines() {
    let mut fleet = [machine("a", GIB), machine("b", GIB)];
    for candidate in &mut fleet {
        candidate.standing = Standing::Unavailable {
            reason: "starting".to_owned(),
        };
    }
    let refusal = plan(&model(4, 10), &fleet, &wish(64, Some(2), "a")).unwrap_err();
    assert_eq!(
        refusal.hint(),
        "wait until a machine can take part, or add one; a-name: it is not available: starting"
    );
    fleet[1].standing = Standing::Available;
    let refusal = plan(&model(4, 10), &fleet, &wish(64, Some(2), "a")).unwrap_err();
    assert!(
        refusal.hint().starts_with("ask for --nodes 1 or fewer"),
        "{}",
        refusal.hint()
    );
}

#[test]
fn more_stages_than_layers_are_refused() {
    let fleet: Vec<Candidate> = (0..5).map(|i| machine(&format!("p{i}"), GIB)).collect();
    let refusal = plan(&model(4, 10), &fleet, &wish(64, Some(5), "p0")).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::TooManyStages {
            wanted: 5,
            layers: 4
        }
    );
}

#[test]
fn senseless_wishes_and_models_are_refused_without_a_panic() {
    let fleet = [machine("a", GIB)];
    let mut huge = model(2, 1);
    huge.layer_bytes = vec![u64::MAX; 2];
    for (shape, wish) in [
        (model(0, 1), wish(64, None, "a")),
        (model(2_000, 1), wish(64, None, "a")),
        (model(2, 1), wish(0, None, "a")),
        (model(2, 1), wish(64, Some(0), "a")),
        (huge, wish(64, None, "a")),
    ] {
        assert!(matches!(
            plan(&shape, &fleet, &wish),
            Err(Refusal::Invalid(_))
        ));
    }
}

#[test]
fn extreme_figures_of_a_peer_do_no_harm() {
    let mut odd = machine("b", u64::MAX);
    odd.rtt_ms = f64::NAN;
    odd.devices[0].bytes_per_s = u64::MAX;
    let mut vast = model(4, 1);
    vast.layer_bytes = vec![u64::MAX / 8; 4];
    for shape in [model(4, 10), vast] {
        let _ = plan(
            &shape,
            std::slice::from_ref(&odd),
            &wish(u32::MAX, None, "a"),
        );
    }
}

#[test]
fn nobody_at_all_is_a_refusal() {
    assert!(matches!(
        plan(&model(4, 10), &[], &wish(64, None, "a")),
        Err(Refusal::TooFewPeers {
            wanted: 1,
            usable: 0,
            ..
        })
    ));
}

#[test]
fn a_peer_listed_twice_counts_once() {
    let shape = model(28, 100);
    let room = takes(&shape, 0, 15);
    let fleet = [machine("a", room), machine("a", room)];
    assert!(plan(&shape, &fleet, &wish(4_096, None, "a")).is_err());
}

#[test]
fn twelve_machines_and_eighty_layers_are_planned_exactly() {
    let shape = model(80, 500);
    let room = takes(&shape, 0, 8);
    let fleet: Vec<Candidate> = (0..12)
        .map(|i| paced(machine(&format!("p{i:02}"), room), 10 + i))
        .collect();
    let plan = plan(&shape, &fleet, &wish(4_096, None, "p03")).unwrap();
    assert_eq!(plan.stages[0].peer, "p03");
    assert_eq!(plan.stages.len(), 11);
}

#[test]
fn beyond_twelve_machines_the_fewest_are_still_found_and_all_are_accounted_for() {
    let shape = model(28, 100);
    let room = takes(&shape, 0, 15);
    let mut fleet: Vec<Candidate> = (0..20)
        .map(|i| machine(&format!("p{i:02}"), takes(&shape, 1, 3)))
        .collect();
    fleet[16].memory_free = room;
    fleet[16].devices[0].memory_free = room;
    fleet[17].memory_free = room;
    fleet[17].devices[0].memory_free = room;
    let plan = plan(&shape, &fleet, &wish(4_096, None, "p00")).unwrap();
    assert_eq!(plan.stages.len(), 2);
    assert_eq!(plan.left_out.len(), 18);
}

#[test]
fn a_line_of_more_than_twelve_machines_is_found_where_it_takes_so_many() {
    let mut shape = model(28, 100);
    shape.embedding_bytes = 50 * MIB;
    shape.head_bytes = 50 * MIB;
    let fleet: Vec<Candidate> = (0..20)
        .map(|i| machine(&format!("p{i:02}"), takes(&shape, 1, 3)))
        .collect();
    let plan = plan(&shape, &fleet, &wish(4_096, None, "p00")).unwrap();
    assert!(plan.stages.len() > 12, "{}", plan.stages.len());
    assert_eq!(layout(&plan).last().unwrap().2, 28);
    let exactly = skein_planner::plan(&shape, &fleet, &wish(4_096, Some(18), "p00")).unwrap();
    assert_eq!(exactly.stages.len(), 18);
}

#[test]
fn a_plan_is_written_as_the_command_line_promises() {
    let fleet = [machine("a", 64 * GIB), machine("b", MIB)];
    let plan = plan(&model(4, 10), &fleet, &wish(64, None, "a")).unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["stages"][0]["layers"], serde_json::json!([0, 4]));
    assert!(
        json["left_out"][0]["reason"]
            .as_str()
            .unwrap()
            .starts_with("not enough memory")
    );
    for key in [
        "peer",
        "name",
        "device",
        "weights_bytes",
        "kv_bytes",
        "headroom_bytes",
        "est_step_ms",
    ] {
        assert!(!json["stages"][0][key].is_null(), "{key}");
    }
}
