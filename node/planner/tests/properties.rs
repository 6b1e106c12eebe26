//! What holds for every model, fleet and wish.

mod common;

use common::{BruteForce, GIB, MIB, device, machine, wish};
use proptest::prelude::*;
use skein_planner::{Candidate, Held, ModelShape, Refusal, Standing, Wish, plan};

/// Sizes around the 150 MiB that an empty stage takes, so that fitting is often a close call.
fn models() -> impl Strategy<Value = ModelShape> {
    (
        prop::collection::vec(1u64..250, 3..6),
        0u64..120,
        0u64..120,
        any::<bool>(),
        0u64..20,
        0u64..20_000,
    )
        .prop_map(|(layers, embedding, head, tied, common, kv)| ModelShape {
            layer_bytes: layers.iter().map(|mib| mib * MIB).collect(),
            embedding_bytes: embedding * MIB,
            head_bytes: head * MIB,
            tied,
            common_bytes: common * MIB,
            kv_bytes_per_token_per_layer: kv,
            hidden: 512,
            vocab: 8_000,
        })
}

fn machines(peer: usize) -> impl Strategy<Value = Candidate> {
    (
        prop_oneof![
            1 => Just(Vec::new()),
            12 => prop::collection::vec((150u64..1_300, 0u64..60), 1..3),
        ],
        150u64..1_300,
        prop_oneof![
            5 => Just(1_000 * GIB),
            1 => (0u64..600).prop_map(|mib| mib * MIB),
        ],
        prop_oneof![Just(0.0), 0.0..30.0],
        prop::collection::btree_set(0u32..6, 0..4),
        any::<(bool, bool)>(),
        0u8..10,
    )
        .prop_map(
            move |(devices, memory, disk, rtt_ms, layers, held, out)| Candidate {
                devices: devices
                    .iter()
                    .zip(["CPU", "GPU", "NPU"])
                    .map(|((mib, speed), id)| device(id, mib * MIB, *speed))
                    .collect(),
                memory_free: memory * MIB,
                disk_free: disk,
                rtt_ms,
                held: Held {
                    common: held.0,
                    embedding: held.1,
                    layers,
                    head: held.0,
                },
                standing: if out == 0 {
                    Standing::Unavailable {
                        reason: "user-active".to_owned(),
                    }
                } else {
                    Standing::Available
                },
                ..machine(&format!("peer{peer}"), 0)
            },
        )
}

fn fleets() -> impl Strategy<Value = Vec<Candidate>> {
    prop_oneof![
        1 => (machines(1),).prop_map(|(a,)| vec![a]),
        1 => (machines(1), machines(2)).prop_map(|(a, b)| vec![b, a]),
        2 => (machines(1), machines(2), machines(3)).prop_map(|(a, b, c)| vec![a, b, c]),
        2 => (machines(1), machines(2), machines(3), machines(4))
            .prop_map(|(a, b, c, d)| vec![c, a, d, b]),
    ]
}

fn wishes() -> impl Strategy<Value = Wish> {
    (
        1u32..4_096,
        prop_oneof![2 => Just(None), 1 => (1usize..5).prop_map(Some)],
        1usize..6,
    )
        .prop_map(|(ctx, nodes, asker)| wish(ctx, nodes, &format!("peer{asker}")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_covers_all_layers_once_and_every_stage_fits_with_headroom(
        model in models(), fleet in fleets(), wish in wishes()
    ) {
        let Ok(plan) = plan(&model, &fleet, &wish) else { return Ok(()) };
        let mut next = 0;
        let mut pools = std::collections::BTreeSet::new();
        for stage in &plan.stages {
            prop_assert_eq!(stage.layers.start, next);
            prop_assert!(stage.layers.end > next);
            next = stage.layers.end;
            prop_assert!(pools.insert(stage.peer.clone()), "two stages on one peer");
            let peer = fleet.iter().find(|peer| peer.peer == stage.peer).expect("a candidate");
            let device = peer.devices.iter().find(|d| d.id == stage.device).expect("a device");
            prop_assert_eq!(&peer.standing, &Standing::Available);
            prop_assert!(stage.reserved_bytes() <= peer.memory_free.min(device.memory_free));
            let used = stage.weights_bytes + stage.kv_bytes + stage.working_bytes;
            prop_assert!(stage.headroom_bytes >= used / 5);
        }
        prop_assert_eq!(next, model.layers());
        prop_assert_eq!(plan.stages.len() + plan.left_out.len(), fleet.len());
        prop_assert!(plan.est_tokens_per_s > 0.0);
    }

    #[test]
    fn the_line_is_the_one_that_trying_every_line_finds(
        model in models(), fleet in fleets(), wish in wishes()
    ) {
        let brute = BruteForce { model: &model, candidates: &fleet, wish: &wish };
        match plan(&model, &fleet, &wish) {
            Ok(plan) => prop_assert_eq!(Some(brute.judge(&plan)), brute.verdict()),
            Err(_) => prop_assert_eq!(brute.verdict(), None),
        }
    }

    #[test]
    fn the_missing_bytes_are_the_fewest_over_all_lines(
        model in models(), fleet in fleets(), wish in wishes()
    ) {
        if let Err(Refusal::DoesNotFit { missing_bytes, .. }) = plan(&model, &fleet, &wish) {
            let brute = BruteForce { model: &model, candidates: &fleet, wish: &wish };
            prop_assert_eq!(Some(missing_bytes), brute.missing());
            prop_assert!(missing_bytes > 0);
        }
    }

    #[test]
    fn adding_memory_never_makes_a_plan_impossible(
        model in models(), fleet in fleets(), wish in wishes(), which in 0usize..4, more in 1u64..2_000
    ) {
        if plan(&model, &fleet, &wish).is_err() { return Ok(()) }
        let mut richer = fleet.clone();
        let peer = &mut richer[which % fleet.len()];
        peer.memory_free += more * MIB;
        for device in &mut peer.devices { device.memory_free += more * MIB; }
        prop_assert!(plan(&model, &richer, &wish).is_ok());
    }

    #[test]
    fn adding_the_missing_bytes_to_one_machine_each_suffices(
        model in models(), fleet in fleets(), wish in wishes()
    ) {
        if let Err(Refusal::DoesNotFit { missing_bytes, .. }) = plan(&model, &fleet, &wish) {
            let mut richer = fleet.clone();
            for peer in &mut richer {
                peer.memory_free += missing_bytes;
                peer.disk_free += missing_bytes;
                // The pool may be what is short while the device is not, so both grow to it.
                for device in &mut peer.devices { device.memory_free += missing_bytes; }
            }
            prop_assert!(plan(&model, &richer, &wish).is_ok());
        }
    }

    #[test]
    fn the_order_of_the_candidates_changes_nothing(
        model in models(), fleet in fleets(), wish in wishes()
    ) {
        let mut reversed = fleet.clone();
        reversed.reverse();
        prop_assert_eq!(plan(&model, &fleet, &wish), plan(&model, &reversed, &wish));
    }
}
