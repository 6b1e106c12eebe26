use proptest::prelude::*;

use super::*;

fn seeded(seed: u64, temperature: f32) -> Sampling {
    Sampling {
        seed,
        temperature,
        ..Sampling::default()
    }
}

/// The definition, without skipping anything.
fn by_definition(logits: &[f32], sampling: &Sampling, position: u32) -> u32 {
    let noise = Noise::new(sampling.seed, sampling.choice, position);
    let mut best = (f64::NEG_INFINITY, 0);
    for (token, logit) in (0..).zip(logits) {
        let score = f64::from(*logit) / f64::from(sampling.temperature) + noise.gumbel(token);
        if score > best.0 {
            best = (score, token);
        }
    }
    best.1
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let most = logits.iter().fold(f32::MIN, |most, logit| most.max(*logit));
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| (f64::from(logit - most) / temperature).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

proptest! {
    #[test]
    fn skipping_tokens_that_cannot_win_changes_no_choice(
        logits in prop::collection::vec(-30f32..30.0, 1..300),
        seed in any::<u64>(),
        temperature in prop_oneof![0.01f32..3.0, 3f32..50.0],
        position in any::<u32>(),
    ) {
        let sampling = seeded(seed, temperature);
        let chosen = sampling.choose(&logits, position).unwrap();
        prop_assert_eq!(chosen.token, by_definition(&logits, &sampling, position));
        let expected = softmax(&logits, 1.0)[chosen.token as usize].ln();
        prop_assert!((f64::from(chosen.logprob) - expected).abs() < 1e-5);
    }

    #[test]
    fn greedy_takes_the_lowest_of_the_largest(
        logits in prop::collection::vec((-3i8..4).prop_map(f32::from), 1..60),
    ) {
        let chosen = Sampling::default().choose(&logits, 5).unwrap();
        let most = logits.iter().copied().fold(f32::MIN, f32::max);
        let first = logits.iter().position(|logit| *logit == most).unwrap();
        prop_assert_eq!(chosen.token as usize, first);
    }

    #[test]
    fn the_most_probable_tokens_are_sorted_with_their_probabilities(
        logits in prop::collection::vec((-20i8..20).prop_map(f32::from), 1..60),
        top in 0u32..=32,
    ) {
        let sampling = Sampling { top, ..Sampling::default() };
        let mut list = [(0, 0.0); MAX_TOP];
        let count = sampling.most_probable(&logits, &mut list).unwrap();
        let probabilities = softmax(&logits, 1.0);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.truncate(top as usize);
        let tokens: Vec<usize> = list[..count].iter().map(|(token, _)| *token as usize).collect();
        prop_assert_eq!(tokens, order);
        for (token, logprob) in &list[..count] {
            prop_assert!((probabilities[*token as usize].ln() - f64::from(*logprob)).abs() < 1e-4);
        }
    }
}

#[test]
fn choices_are_the_same_on_every_platform() {
    let logits: Vec<f32> = (0..1000u32)
        .map(|token| ((token * 7919) % 1009) as f32 / 100.0)
        .collect();
    let tokens: Vec<u32> = (0..12)
        .map(|position| seeded(2026, 0.8).choose(&logits, position).unwrap().token)
        .collect();
    let chosen = seeded(2026, 0.8).choose(&logits, 0).unwrap();
    assert_eq!(
        tokens,
        [831, 264, 607, 627, 152, 719, 337, 798, 958, 165, 297, 462]
    );
    assert_eq!(chosen.logprob.to_bits(), 3231050476);
}

/// Pearson's statistic of counts against probabilities.
fn chi_square(counts: &[u32], probabilities: &[f64]) -> f64 {
    let total: u32 = counts.iter().sum();
    counts
        .iter()
        .zip(probabilities)
        .map(|(count, probability)| {
            let expected = f64::from(total) * probability;
            (f64::from(*count) - expected).powi(2) / expected
        })
        .sum()
}

#[test]
fn sampled_tokens_follow_the_softmax() {
    // 300,000 draws over 12 tokens: 11 degrees of freedom, critical value 31.3 at 0.001. The test's
    // power is shown on a temperature that is 3 % off: the noncentrality there is over 80, so that
    // such a mistake passes with a probability below 1e-4. One token's probability of 0.1 wrong by
    // 2.5 % gives 19: found in three of four cases.
    let logits = [
        2.0f32, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, 1.9, 1.1, 0.1, -2.0, 0.7,
    ];
    let temperature = 0.8f32;
    let mut counts = [0u32; 12];
    for index in 0..300_000u32 {
        let sampling = Sampling {
            choice: index % 3,
            ..seeded(u64::from(index % 11), temperature)
        };
        counts[sampling.choose(&logits, index).unwrap().token as usize] += 1;
    }
    let right = chi_square(&counts, &softmax(&logits, f64::from(temperature)));
    assert!(right < 31.3, "{right}");
    let wrong = chi_square(&counts, &softmax(&logits, f64::from(temperature) * 1.03));
    assert!(wrong > 60.0, "{wrong}");
}

#[test]
fn neighbouring_positions_choices_and_seeds_are_independent() {
    // Pairs of draws of a fair coin with four sides: 15 degrees of freedom, critical value 37.7 at
    // 0.001; 40,000 pairs find a correlation of 0.04 nearly always.
    let logits = [0.0f32; 4];
    let draw = |seed, choice, position| {
        let sampling = Sampling {
            choice,
            ..seeded(seed, 1.0)
        };
        sampling.choose(&logits, position).unwrap().token as usize
    };
    for kind in 0..3 {
        let mut counts = [0u32; 16];
        for index in 0..40_000u32 {
            let (seed, choice, position) = (u64::from(index), index, index * 2);
            let one = draw(seed, choice, position);
            let other = match kind {
                0 => draw(seed, choice, position + 1),
                1 => draw(seed, choice + 1, position),
                _ => draw(seed + 1, choice, position),
            };
            counts[one * 4 + other] += 1;
        }
        let statistic = chi_square(&counts, &[1.0 / 16.0; 16]);
        assert!(statistic < 37.7, "kind {kind}: {statistic}");
    }
}

#[test]
fn logits_that_are_not_numbers_are_refused() {
    for bad in [f32::NAN, f32::INFINITY] {
        for at in [0, 1, 17, 39] {
            let mut logits = vec![0.5; 40];
            logits[at] = bad;
            for temperature in [0.0, 1.0] {
                assert_eq!(seeded(1, temperature).choose(&logits, 0), Err(NotFinite));
            }
        }
    }
    assert_eq!(Sampling::default().choose(&[], 0), Err(NotFinite));
    let masked = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
    assert_eq!(seeded(1, 1.0).choose(&masked, 0).unwrap().token, 1);
}

#[test]
fn extreme_temperatures_choose_sensibly() {
    let logits = [1.0f32, 3.0, 2.0];
    for position in 0..100 {
        let cold = seeded(9, f32::from_bits(1))
            .choose(&logits, position)
            .unwrap();
        assert_eq!(cold.token, 1);
    }
    let hot: std::collections::BTreeSet<u32> = (0..100)
        .map(|position| seeded(9, f32::MAX).choose(&logits, position).unwrap().token)
        .collect();
    assert_eq!(hot.len(), 3);
}

#[test]
fn the_exponential_is_close_everywhere() {
    let mut worst = 0f64;
    for step in 0..90_000 {
        let x = -(step as f32) / 1000.0;
        let exact = f64::from(x).exp();
        let error = (f64::from(exp_of_negative(x)) - exact).abs() / exact.max(1e-37);
        if x >= -87.0 {
            worst = worst.max(error);
        }
    }
    assert!(worst < 4e-7, "{worst}");
    assert_eq!(exp_of_negative(0.0), 1.0);
    assert_eq!(exp_of_negative(f32::NEG_INFINITY), 0.0);
    assert!(exp_of_negative(f32::NAN).is_nan());
}

#[test]
fn parameters_that_would_be_ignored_are_refused_by_name() {
    let off = Sampling::default();
    assert_eq!(off.validate(), Ok(()));
    for (name, sampling) in [
        ("top_k", Sampling { top_k: 40, ..off }),
        ("top_p", Sampling { top_p: 0.9, ..off }),
        ("min_p", Sampling { min_p: 0.1, ..off }),
        (
            "repetition_penalty",
            Sampling {
                repetition_penalty: 1.1,
                ..off
            },
        ),
        (
            "presence_penalty",
            Sampling {
                presence_penalty: 0.5,
                ..off
            },
        ),
        (
            "frequency_penalty",
            Sampling {
                frequency_penalty: f32::NAN,
                ..off
            },
        ),
        (
            "penalty_window",
            Sampling {
                penalty_window: 64,
                ..off
            },
        ),
    ] {
        assert_eq!(sampling.validate(), Err(SamplingError::Unsupported(name)));
    }
    for temperature in [-0.1, f32::NAN, f32::INFINITY] {
        assert!(seeded(0, temperature).validate().is_err());
    }
    assert_eq!(
        Sampling { top: 33, ..off }.validate(),
        Err(SamplingError::Top(33))
    );
}
